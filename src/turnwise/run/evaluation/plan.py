"""Plan of an evaluation: models, tasks and tries, validated before anything is loaded, and saved in its folder."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnwise.config.load import Overrides, build, read_saved_settings, to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import UserError, read_failure
from turnwise.core.task import Split, Task
from turnwise.envs.seeds import FIRST_SEED, SEEDS_PER_SPLIT, seed_for, split_of_seed
from turnwise.envs.settings import NO_ENV
from turnwise.envs.spec import EnvSpec
from turnwise.record.evaluation_folder import EvaluationFolder, read_plan
from turnwise.run.contexts import check_context
from turnwise.run.environment_mix import load_environment, rows_name
from turnwise.run.evaluation.arguments import RemoteModels, split_environment
from turnwise.run.evaluation.models import EvaluatedModel, build_models
from turnwise.run.resources import check_threads
from turnwise.run.setting_paths import is_file
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
    if tries is not None and tries < 1:
        raise UserError(f"tries {tries}: must be 1 or more.")
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


MAX_SEEDS = 1_000_000
MAX_FILE = 20_000_000
"""Largest file of seeds, in bytes."""
_RANGE = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?", re.ASCII)


def read_seeds(text: str, split: Split) -> tuple[int, ...]:
    """Read the seeds from a list such as 3,7,10-20, or from a file with such a list.

    Numbers below 2^40 are indices of the split, as in `turnwise play --seed`. Larger ones are seeds as recorded in
    trajectories and must belong to the split.
    """
    path = Path(text)
    listed = _read(path) if is_file(path) else text
    words = [word for line in listed.splitlines() for word in re.split(r"[,\s]+", line.partition("#")[0]) if word]
    seeds = tuple(_seed(number, split) for number in _numbers(words))
    if not seeds:
        raise UserError(f"seeds {text}: contains no seeds. Give a list such as 3,7,10-20, or a file with one.")
    twice, times = Counter(seeds).most_common(1)[0]
    if times > 1:
        raise UserError(
            f"seeds names {twice - FIRST_SEED[split]} twice. Give each seed once; tries sets the episodes per task."
        )
    return seeds


def write_seeds(seeds: Sequence[int]) -> str:
    """Return the shortest list that `read_seeds` reads, with ranges such as 10-20."""
    ranges: list[list[int]] = []
    for seed in seeds:
        if ranges and seed == ranges[-1][1] + 1:
            ranges[-1][1] = seed
        else:
            ranges.append([seed, seed])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE:
            raise UserError(f"seeds {path}: the file is larger than {MAX_FILE} bytes. Give a list of seeds.")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"seeds: {read_failure(path, error)}. Give a text file of seeds.") from error


def _numbers(words: Iterable[str]) -> list[int]:
    numbers: list[int] = []
    for word in words:
        found = _RANGE.fullmatch(word)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise UserError(f'seeds: "{word[:40]}" is not a seed. Give whole numbers and ranges, such as 3,7,10-20.')
        if len(numbers) + last - first >= MAX_SEEDS:
            raise UserError(f"seeds: more than {MAX_SEEDS} seeds. Give fewer.")
        numbers += range(first, last + 1)
    return numbers


def _seed(number: int, split: Split) -> int:
    if number < SEEDS_PER_SPLIT:
        return seed_for(split, number)
    if (found := split_of_seed(number)) != split:
        raise UserError(f"seeds: {number} belongs to the {found} split, not to {split}. Choose split {found}.")
    return number
