"""An evaluation's plan in its folder: written when it starts, read to go on, compared where one is there already."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config.load import build, read_saved_settings, to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.recipes.eval_contestants import Contestant
from turnwise.recipes.eval_seeds import read_seeds, write_seeds
from turnwise.record.evaluation_folder import EvaluationFolder, read_plan

FOLDER = "runs"
SECTIONS = ("env", "model", "rollout", "context", "eval")
FREE = ("rollout.in_flight", "rollout.attempts", "eval.episodes", "eval.every")
"""What may change while an evaluation goes on: it does not change what an episode is."""


def free_path(environment: str, names: Sequence[str]) -> Path:
    """Where an evaluation goes that was given no folder."""
    more = f"-and-{len(names) - 1}-more" if len(names) > 1 else ""
    base = Path(FOLDER) / f"eval-{environment}-{names[0]}{more}"
    paths = [base, *(base.with_name(f"{base.name}-{number}") for number in range(2, 10_000))]
    return next(path for path in paths if not path.exists())


def save_plan(
    folder: EvaluationFolder,
    contestants: Sequence[Contestant],
    *,
    split: str,
    seeds: Sequence[int],
    tries: int,
    key_variable: str | None,
) -> None:
    """Tasks, tries and models may be added to what the folder holds; what its episodes were played with may not change.

    Models that are not asked for this time stay in the plan, as their episodes do in the folder.
    """
    rows = {each.name: _row(each) for each in contestants}
    plan: dict[str, Any] = {
        "environment": contestants[0].config.env.kind,
        "split": split,
        "seeds": write_seeds(seeds),
        "tries": tries,
        "models": list(rows.values()),
    }
    if key_variable is not None:
        plan["api_key_env"] = key_variable
    if not folder.fresh:
        old = read_plan(folder.path)
        _check_same(folder, {"environment": old["environment"], "split": old["split"]}, plan)
        held = read_seeds(old["seeds"], old["split"])
        if set(seeds) < set(held):
            raise UserError(
                f"{folder.path} holds an evaluation of {len(held)} tasks, and {len(seeds)} of them are asked for, "
                "which would take its place: give another --out"
            )
        before = {row["name"]: row for row in old["models"]}
        for each in contestants:
            if each.name in before:
                _check_same(folder, before[each.name], rows[each.name])
                _check_settings(folder, each)
    folder.write_plan(plan, {each.name: to_toml(each.config) for each in contestants})


def saved_contestants(path: Path, plan: Mapping[str, Any]) -> list[Contestant]:
    """Those of a plan, with the settings that they began with."""
    try:
        return [
            Contestant(
                label=row["label"],
                source=row["source"],
                url=row.get("endpoint"),
                config=build(read_saved_settings(path / "models" / f"{row['name']}.toml")),
            )
            for row in plan["models"]
        ]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} holds a plan that cannot be read ({error!r}): evaluate anew") from error


def _row(contestant: Contestant) -> dict[str, Any]:
    row = {"name": contestant.name, "label": contestant.label, "source": contestant.source}
    return row if contestant.url is None else {**row, "endpoint": contestant.url}


def _check_settings(folder: EvaluationFolder, contestant: Contestant) -> None:
    old = build(read_saved_settings(folder.settings_path(contestant.name)))
    _check_same(folder, _flat(old), _flat(contestant.config))


def _flat(config: Config) -> dict[str, Any]:
    found = config.model_dump()
    flat = {f"{section}.{key}": value for section in SECTIONS for key, value in found[section].items()}
    return {key: value for key, value in flat.items() if key not in FREE}


def _check_same(folder: EvaluationFolder, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in old.items():
        if new.get(key) != value:
            raise UserError(
                f"{folder.path} holds an evaluation with another {key} ({value}, now {new.get(key)}): "
                "choose another --out, or give what it began with"
            )
