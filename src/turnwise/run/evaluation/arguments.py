"""Arguments of `turnwise eval`: runs, models, endpoint, environment. No torch, so that errors appear at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config.load import Overrides, build, read_run
from turnwise.core.errors import UserError
from turnwise.envs.catalogue import split_target
from turnwise.models.loading.catalogue import model_names
from turnwise.models.loading.hub import is_hub_name
from turnwise.recipes.presets import recipe_names
from turnwise.run.configure import load_target
from turnwise.run.environment_mix import parse_list_params
from turnwise.run.evaluation.seeds import read_numbers
from turnwise.run.find_source import find_run_or_none
from turnwise.run.setting_names import check_cuda, check_model_name
from turnwise.user_code.references import IN_MEMORY

SHARED = ("env", "agent", "rollout", "context", "eval")
"""Sections that a model takes over from the run that it is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModels:
    """Models behind an endpoint, from --endpoint and --model."""

    url: str
    models: tuple[str, ...]


def split_environment(words: Sequence[str], remote: RemoteModels | None) -> tuple[list[str], str | None]:
    """Split the arguments SOURCE... [ENV]. The last one is ENV if it names an environment or a recipe."""
    if not words or (len(words) == 1 and remote is None):
        return list(words), None
    *others, last = words
    is_file = ".py" in last or last.endswith(".toml")
    if is_file or last in recipe_names() or last.startswith(IN_MEMORY) or split_target(last) is not None:
        return others, last
    if not _is_source(last):
        load_target(last)  # raises an error that suggests the nearest name
    return list(words), None


def _is_source(source: str) -> bool:
    known = source in model_names() or is_hub_name(source) or Path(source).expanduser().exists()
    return known or source.count("/") > 1 or find_run_or_none(source) is not None


def check_tries(tries: int | None) -> None:
    if tries is not None and tries < 1:
        raise UserError(f"tries {tries}: must be 1 or more.")


def check_arguments(
    words: Sequence[str],
    remote: RemoteModels | None,
    overrides: Overrides,
    *,
    seeds: str | None = None,
    tries: int | None = None,
) -> None:
    """Raise UserError for an unknown run, model or environment, or a wrong value of a setting."""
    check_tries(tries)
    if seeds is not None:
        read_numbers(seeds)
    sources, environment = split_environment(words, remote)
    runs = {source: run for source in sources if (run := find_run_or_none(source)) is not None}
    shared = shared_settings(sources, environment, remote, runs, overrides)
    known = parse_list_params(shared, [setting for setting in overrides if setting != ("eval.split", "train")])
    check_cuda(build(shared, known).model)
    for source in sources:
        if source not in runs:
            check_model_name(build(shared, [("model.name", source), *known]))


def shared_settings(
    sources: Sequence[str],
    environment: str | None,
    remote: RemoteModels | None,
    runs: Mapping[str, tuple[Path, str | None]],
    overrides: Overrides,
) -> dict[str, Any]:
    """Return the settings of models that are not runs: those of the environment, or of the first run."""
    if environment is not None:
        return load_target(environment, overrides)
    if runs:
        first = read_run(str(next(iter(runs.values()))[0]))
        return {section: first[section] for section in SHARED if section in first}
    if remote is not None:
        raise UserError(
            f"The environment is missing. Run: turnwise eval ENV --endpoint {remote.url} --model {remote.models[0]}"
        )
    if not sources:
        raise UserError("There is nothing to evaluate. Give a run, a model, or an endpoint and the model behind it.")
    raise UserError(f'No run "{sources[0]}". If it is a model, name the environment after it, such as frozen_lake.')
