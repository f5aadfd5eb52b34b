"""Plan of an evaluation: models, tasks and tries, validated before anything is loaded, and saved in its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnwise.config.load import Overrides, build, read_saved_settings, to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.task import Split, Task
from turnwise.envs.seeds import FIRST_SEED, seed_for
from turnwise.envs.settings import NO_ENV
from turnwise.envs.spec import EnvSpec
from turnwise.record.evaluation_folder import EvaluationFolder, read_plan
from turnwise.run.build_context import check_context
from turnwise.run.environment_mix import load_environment, rows_name
from turnwise.run.evaluation.arguments import RemoteModels, check_tries, split_environment
from turnwise.run.evaluation.models import EvaluatedModel, build_models
from turnwise.run.evaluation.seeds import read_seeds, write_seeds
from turnwise.run.resources import check_threads
from turnwise.run.training_run import resolve
from turnwise.run.validate import check_model, check_servers

COMPARED_SECTIONS = ("env", "agent", "model", "rollout", "context", "eval")
MAY_CHANGE = ("rollout.in_flight", "rollout.attempts", "eval.episodes", "eval.every")
"""Settings that a resumed evaluation may change, because they do not affect an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    models: Sequence[EvaluatedModel]
    spec: EnvSpec
    params: dict[str, Any]
    split: Split
    seeds: Sequence[int]
    tries: int
    """Episodes per task."""
    note: str = ""
    """Remark about the tasks, printed first."""

    def tasks(self) -> list[Task]:
        return [Task(env=self.spec.name, params=self.params, split=self.split, seed=seed) for seed in self.seeds]


def plan_evaluation(
    words: Sequence[str],
    *,
    remote: RemoteModels | None = None,
    overrides: Overrides = (),
    seeds: str | None = None,
    tries: int | None = None,
) -> EvaluationPlan:
    """Plan and validate an evaluation. `words` are the arguments SOURCE... [ENV] of `turnwise eval`.

    The schema does not allow eval.split train, because training never evaluates on its own tasks. Here it is allowed.
    """
    check_tries(tries)
    on_train = ("eval.split", "train") in overrides
    sources, environment = split_environment(words, remote)
    known = [(key, value) for key, value in overrides if not (on_train and key == "eval.split")]
    models = build_models(sources, environment, remote, known)
    return _build_plan(models, seeds, "train" if on_train else models[0].config.eval.split, tries or 1)


def load_plan(path: Path) -> tuple[EvaluationPlan, str | None]:
    """Return the plan in an evaluation folder and the environment variable of its API key."""
    saved = read_plan(path)
    plan = _build_plan(saved_models(path, saved), saved["seeds"], saved["split"], saved["tries"])
    return plan, saved.get("api_key_env")


def _build_plan(models: Sequence[EvaluatedModel], seeds: str | None, split: Split, tries: int) -> EvaluationPlan:
    models = [replace(model, config=resolve(model.config)) for model in models]
    config = models[0].config
    if config.env.kind == NO_ENV:
        raise UserError(f"{models[0].label} was trained without an environment. Name one: turnwise eval RUN ENV.")
    spec, given = load_environment(config.env, config.agent)
    for model in models:
        if model.url is None:
            check_context(model.config)
            check_model(model.config.model)
            check_threads(model.config.system)
    params = spec.check_params(given)
    spec.check_resources(params)
    roles = spec.roles(params)
    if len(roles) > 1:
        raise UserError(
            f"{spec.name} trains {len(roles)} roles. Evaluate one at a time, such as --env.params.role {roles[0]}."
        )
    if roles:
        params["role"] = roles[0]
    chosen, note = _choose_seeds(spec, params, split, seeds, config.eval.episodes)
    check_servers([(spec, params)])
    return EvaluationPlan(models=models, spec=spec, params=params, split=split, seeds=chosen, tries=tries, note=note)


def _choose_seeds(
    spec: EnvSpec, params: dict[str, Any], split: Split, seeds: str | None, episodes: int
) -> tuple[Sequence[int], str]:
    """Return the seeds of the tasks, and a note if the split has fewer tasks than eval.episodes."""
    size = spec.split_sizes(params).get(split)
    rows = f"The {split} split of {rows_name(spec.name, params)} has {size} tasks"
    if seeds:
        chosen = read_seeds(seeds, split)
        indices = [seed - FIRST_SEED[split] for seed in chosen]
        beyond = next((index for index in indices if size is not None and index >= size), None)
        if beyond is not None:
            raise UserError(f"seeds {beyond}: {rows}, counted from 0. Remove it.")
        return chosen, ""
    if size is None or size >= episodes:
        return [seed_for(split, index) for index in range(episodes)], ""
    note = f"{rows}, fewer than eval.episodes {episodes}. All of them are used."
    return [seed_for(split, index) for index in range(size)], note


def save_plan(folder: EvaluationFolder, plan: EvaluationPlan, *, key_variable: str | None) -> None:
    """Save the plan in its folder.

    A folder that holds an evaluation can get more tasks, tries and models, but not other settings for its episodes.
    Models that this plan leaves out stay in the folder's plan.
    """
    rows = {model.name: _row(model) for model in plan.models}
    contents: dict[str, Any] = {
        "environment": plan.models[0].config.env.kind,
        "split": plan.split,
        "seeds": write_seeds(plan.seeds),
        "tries": plan.tries,
        "models": list(rows.values()),
    }
    if key_variable is not None:
        contents["api_key_env"] = key_variable
    if not folder.is_new:
        _check_extends(folder, plan, contents, rows)
    folder.write_plan(contents, {model.name: to_toml(model.config) for model in plan.models})


def _check_extends(
    folder: EvaluationFolder, plan: EvaluationPlan, contents: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise UserError if the plan would replace episodes in the folder instead of adding to them."""
    old = read_plan(folder.path)
    _check_same(folder, {"environment": old["environment"], "split": old["split"]}, contents)
    old_seeds = read_seeds(old["seeds"], old["split"])
    if set(plan.seeds) < set(old_seeds):
        raise UserError(
            f"{folder.path} holds an evaluation of {len(old_seeds)} tasks, which one of {len(plan.seeds)} of them "
            "would replace. Give another folder."
        )
    old_rows = {row["name"]: row for row in old["models"]}
    for model in plan.models:
        if model.name in old_rows:
            _check_same(folder, old_rows[model.name], rows[model.name])
            saved = build(read_saved_settings(folder.settings_path(model.name)))
            _check_same(folder, _compared_settings(saved), _compared_settings(model.config))


def saved_models(path: Path, plan: Mapping[str, Any]) -> list[EvaluatedModel]:
    """Return the models of a saved plan, with their saved settings."""
    try:
        return [
            EvaluatedModel(
                label=row["label"],
                source=row["source"],
                url=row.get("endpoint"),
                config=build(read_saved_settings(path / "models" / f"{row['name']}.toml")),
            )
            for row in plan["models"]
        ]
    except (KeyError, TypeError) as error:
        raise UserError(f"Cannot read the plan in {path} ({error!r}). Start a new evaluation.") from error


def _row(model: EvaluatedModel) -> dict[str, Any]:
    row = {"name": model.name, "label": model.label, "source": model.source}
    return row if model.url is None else {**row, "endpoint": model.url}


def _compared_settings(config: Config) -> dict[str, Any]:
    sections = config.model_dump()
    flat = {f"{section}.{key}": value for section in COMPARED_SECTIONS for key, value in sections[section].items()}
    return {key: value for key, value in flat.items() if key not in MAY_CHANGE}


def _check_same(folder: EvaluationFolder, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in old.items():
        if new.get(key) != value:
            raise UserError(
                f"{folder.path} holds an evaluation with another {key} ({value}, now {new.get(key)}). Choose another "
                "folder, or use its settings."
            )
