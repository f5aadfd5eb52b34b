"""Configure a run: from the command line's arguments to a `Config`. Needs no torch. `validate.py` checks it later."""

from pathlib import Path
from typing import Any

from turnwise.config.load import (
    Overrides,
    build,
    drop_misfits,
    is_of_older_version,
    merge,
    read_run,
    read_settings,
)
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.engine.engines import ENGINES, Native
from turnwise.envs.agent.choices import starts_agent
from turnwise.envs.agent.settings import AGENT_ENV
from turnwise.envs.catalogue import split_target
from turnwise.envs.registry import ENVIRONMENTS
from turnwise.envs.settings import NO_ENV
from turnwise.files.datasets import is_dataset, is_on_hub
from turnwise.files.run_folders import CONFIG_FILE, find_run_folder
from turnwise.models.loading.catalogue import PIXELS_PER_TOKEN, TINY, TINY_VLM
from turnwise.recipes.presets import MODELS, find_method, find_recipe, method_path, recipe_names, recipe_path
from turnwise.record.provenance import check_code_files
from turnwise.record.resume_command import spell_resume
from turnwise.record.trackers import check_trackers
from turnwise.run.environment_mix import EnvironmentMix, build_environment_mix, parse_list_params
from turnwise.run.setting_names import check_device
from turnwise.run.setting_paths import read_settings_file, resolve_paths
from turnwise.settings.choice import KIND
from turnwise.text.command_line import spell_command
from turnwise.text.suggestions import closest_match, suggest
from turnwise.user_code.references import IN_MEMORY, is_reference

QUESTIONS_ENV = "tools"
"""Environment of a dataset of tasks."""
VISUAL_MODEL = {"name": TINY_VLM, "train_vision": True}
"""Default `model` settings of targets that show images and are not recipes."""
SAME_DEFAULTS = {TINY_VLM: TINY}
"""Models that take the default settings of another model."""

CURRENT_TURN = {KIND: "turn", "turns": 0}
"""Default `context` settings of the tiny models in fully observable environments, for targets that are not recipes."""
SINGLE_TURN = "_single_turn"
"""Suffix of a model's default settings for these contexts, which go on top of its others."""

TOKEN_LIMITS = ("max_new_tokens", "max_tokens")
"""Settings of `rollout` that fit the answers of a recipe's environment, so that `like` does not take them."""

MAY_CHANGE = ("train.max_minutes",)
"""Settings that a resumed run may change, because they do not affect what is learnt."""


def configure(
    target: str | None = None,
    *,
    like: str | None = None,
    start_from: str | None = None,
    resume: str | None = None,
    overrides: Overrides = (),
    full_context: bool = False,
) -> Config:
    """Return the configuration of a run. Give one of `target`, `start_from` and `resume`.

    `target` is a recipe, an environment or a file of settings; `like` is a recipe whose settings, except its
    environment and token limits, the target takes; `start_from` is a run whose settings a new run takes; `resume`
    is a run to continue. `full_context`: show whole episodes by default, also in environments that need not.
    """
    if like is not None and target is None:
        raise UserError("like RECIPE needs an environment, such as my_env.py:MyEnv. Add one.")
    settings = _base_settings(target, start_from, resume, overrides)
    if resume is not None and is_of_older_version(resume):
        run = find_run_folder(resume)
        further = spell_command("train", "--from", run, "--model.name", run)
        raise UserError(f"{run} was made by an older version of turnwise. Start a new run from it: `{further}`")
    overrides = parse_list_params(settings, overrides)
    if resume is not None:
        check_code_files(find_run_folder(resume))
        _refuse_changes(find_run_folder(resume), [override for override in overrides if override[0] not in MAY_CHANGE])
    has_recipe, context = target is None or target in recipe_names(), settings.get("context", {})
    is_chosen = KIND in context or any(_find_override(name, overrides) for name in ("context", f"context.{KIND}"))
    first, known = overrides, settings
    if not has_recipe and not is_chosen:  # the context may depend on the environment
        first = [(name, value) for name, value in overrides if not name.startswith("context.")]
        known = {**settings, "context": {}}
    config = _complete(known, target, like, first)
    check_device(config.model)
    check_trackers(config.record.trackers)
    environments = build_environment_mix(config.env, config.agent)
    if has_recipe:
        return config
    if not _names_model(settings, like, overrides) and environments.visual_spec:
        settings = settings | {"model": VISUAL_MODEL | settings.get("model", {})}
        config = _complete({**settings, "context": known.get("context", {})}, target, like, first)
    if like is None and not full_context and not is_chosen and environments.is_fully_observable:
        settings = settings | {"context": _default_context(config.model.name) | context}
    return _fit_images(_complete(settings, target, like, overrides), environments)


def _refuse_changes(run: Path, changes: Overrides) -> None:
    """Raise UserError if a resumed run would get other settings."""
    if not changes:
        return
    again = spell_resume(run)
    options = [word for key, value in changes for word in (f"--{key}", value)]
    message = f"{run} keeps its own settings when it is resumed. Remove {changes[0][0]}: `{again}`"
    if " train " in again:  # only `turnwise train` takes the settings of a run
        message += f", or start a new run from its settings: `{spell_command('train', '--from', run, *options)}`"
    raise UserError(message)


def _default_context(model: str) -> dict[str, Any]:
    """Return the `context` settings with which a model sees fully observable environments: a run's model, its run's."""
    if (Path(model) / CONFIG_FILE).is_file():
        context = read_run(model).get("context", {})
        return {key: context[key] for key in CURRENT_TURN if key in context}
    return CURRENT_TURN if SAME_DEFAULTS.get(model, model) == TINY else {}


def _fit_images(config: Config, environments: EnvironmentMix) -> Config:
    """Choose the size of images by the model's tokens, unless it is given: a token shows a cell, if there are cells."""
    pixels, env, visual = PIXELS_PER_TOKEN.get(root_model(config.model.name)), config.env, environments.visual_spec
    if pixels is None or visual is None or visual is not next(iter(environments.specs.values())):
        return config
    sizes = visual.image_params(pixels)
    if sizes.keys() & env.params.keys():
        return config
    return config.model_copy(update={"env": env.model_copy(update={"params": env.params | sizes})})


def _complete(settings: dict[str, Any], target: str | None, like: str | None, overrides: Overrides) -> Config:
    """Build the configuration from the settings of a target or run, with defaults, method and overrides."""
    if target is not None:
        settings = _apply_defaults(settings, target, like, overrides)
    settings = _apply_method(settings, overrides, from_target=target is not None)
    config = build(_apply_off_policy_defaults(settings, overrides), overrides, load_code=True)
    config = resolve_paths(config)
    return _fit_mini_batch(config, overrides)


def _names_model(settings: dict[str, Any], like: str | None, overrides: Overrides) -> bool:
    """Return whether the target, `like` or an override names a model. Recipes do, at least by default."""
    given = "name" in settings.get("model", {}) or _find_override("model.name", overrides) is not None
    return given or like is not None


def _base_settings(
    target: str | None, start_from: str | None, resume: str | None, overrides: Overrides
) -> dict[str, Any]:
    match (target, start_from, resume):
        case (str(), None, None):
            return load_target(target, overrides)
        case (None, str(), None):
            parent = str(find_run_folder(start_from).absolute())
            return _with_record(read_run(start_from), name=None, parent=parent)  # a new run gets its own name
        case (None, None, str()):
            folder = find_run_folder(resume)
            settings = read_run(resume)
            if "env" not in settings:
                raise UserError(f"{folder / CONFIG_FILE} is incomplete: it has no section env. Restore it from a copy.")
            return _with_record(settings, folder=str(folder.parent), name=folder.name)
    raise UserError(
        "Give one of: a recipe (`turnwise recipes` lists them), a run to take the settings from, a run to resume "
        "(`turnwise train --help`). With another run's settings, env.kind chooses the environment."
    )


def _with_record(settings: dict[str, Any], **record: Any) -> dict[str, Any]:
    return settings | {"record": settings.get("record", {}) | record}


def load_target(target: str, overrides: Overrides = ()) -> dict[str, Any]:
    """Return the settings that `turnwise train TARGET` starts from, not yet checked.

    These are a recipe, a file of settings, or the defaults with that environment, such as gymnasium:Taxi-v4. A dataset
    is the environment `tools` with these tasks.
    A file must name its environment, unless one of the `overrides` does.
    """
    if target in recipe_names():
        return load_recipe(target)
    if target.endswith(".toml"):
        settings = read_settings_file(Path(target))
        _check_names_environment(target, settings, overrides)
        return settings
    if (named := split_target(target)) is not None:
        kind, params = named
        return {"env": {"kind": kind} | ({"params": params} if params else {})}
    if is_dataset(target):
        return _ask_dataset(target, overrides)
    if target in (NO_ENV, AGENT_ENV) or ".py" in target or target.startswith(IN_MEMORY):
        return {"env": {"kind": target}}
    if closest_match(Path(target).suffix, [".toml", ".py"]) or Path(target).is_file():
        raise UserError(f"{target}: settings are read from FILE.toml and environments from FILE.py:Class. Rename it.")
    module, separator, name = target.partition(":") if ":" in target else target.rpartition(".")
    if separator and Path(f"{module}.py").is_file():
        raise UserError(f'Unknown environment "{target}": did you mean {module}.py:{name}?')
    if (Path(target) / CONFIG_FILE).is_file():
        raise UserError(
            f"{target} is a run, not an environment. Name its environment, continue it with `turnwise train --resume "
            f"{target}`, or start another run with its settings: `turnwise train --from {target}`."
        )
    near = suggest(target, [*recipe_names(), *ENVIRONMENTS])
    raise UserError(f'Unknown recipe or environment "{target}":{near} (`turnwise recipes` and `envs` list them).')


def _ask_dataset(dataset: str, overrides: Overrides) -> dict[str, Any]:
    """Return the settings that ask the questions of a dataset. Raises UserError if nothing scores the answers."""
    if _find_override("env.params.reward", overrides) is None:
        raise UserError(
            f"{dataset} has tasks, and nothing scores the answers. Add --reward FILE.py:function, or the name of a "
            "reward such as exact_match (docs/rewards.md)."
        )
    tasks = dataset if is_on_hub(dataset) else str(Path(dataset).expanduser().resolve())
    return {"env": {"kind": QUESTIONS_ENV, "params": {"tasks": tasks}}}


def _check_names_environment(file: str, settings: dict[str, Any], overrides: Overrides) -> None:
    """Raise UserError if the default of env.kind would decide what a file of settings trains."""
    if all(value == {} for value in settings.values()):
        raise UserError(f'{file} has no settings. Start it with the environment: [env], then kind = "frozen_lake".')
    env = settings.get("env", {})  # if it is not a table, it is refused later
    names_env = not isinstance(env, dict) or "kind" in env or starts_agent(settings.get("agent"))
    given = {key.replace("-", "_") for key, _ in overrides}
    if not names_env and not given & {"env.kind", "agent.command", "agent.function"}:
        raise UserError(
            f'{file} does not name an environment. Add [env] with kind = "frozen_lake", for example, or give '
            "--env.kind NAME."
        )


def _apply_defaults(settings: dict[str, Any], target: str, like: str | None, overrides: Overrides) -> dict[str, Any]:
    """Put the settings of the recipe `like`, or else the model's defaults, below those of the target."""
    if target in recipe_names():
        if like is not None:
            raise UserError(f"like {like}: {target} is a recipe and has its own settings. Remove one of them.")
        return settings
    recipe = {} if like is None else load_recipe(like)
    named = _find_override("model.name", overrides) or (recipe | settings).get("model", {}).get("name", "tiny")
    defaults = _model_defaults(str(named))
    if like is not None:
        defaults = _without_task(recipe, limits=defaults.get("rollout", {}))
    elif settings.get("context") == CURRENT_TURN:
        defaults = merge(defaults, _model_defaults(str(named), SINGLE_TURN))
    return merge(defaults, settings)


def _without_task(recipe: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe without its environment, and with the token limits in `limits` instead of its own."""
    rollout = {key: value for key, value in recipe.get("rollout", {}).items() if key not in TOKEN_LIMITS}
    rollout |= {key: value for key, value in limits.items() if key in TOKEN_LIMITS}
    return {section: values for section, values in recipe.items() if section != "env"} | {"rollout": rollout}


def _model_defaults(model: str, variant: str = "") -> dict[str, Any]:
    """Return settings that suit a model better than the general defaults. A run counts as the model it started from."""
    model = root_model(model)
    path = MODELS / f"{SAME_DEFAULTS.get(model, model)}{variant}.toml"
    return read_settings(path) if model == Path(model).name and path.is_file() else {}


def root_model(model: str) -> str:
    """Return the model that a run started from; a model that is not a run itself."""
    visited: set[str] = set()
    while (Path(model) / CONFIG_FILE).is_file() and model not in visited:
        visited.add(model)
        model = str(read_run(model).get("model", {}).get("name", ""))
    return model


def _find_override(name: str, overrides: Overrides) -> Any:
    """Return the last value given for a setting; None without one."""
    return next((value for key, value in reversed(overrides) if key.replace("-", "_") == name), None)


def _apply_method(settings: dict[str, Any], overrides: Overrides, *, from_target: bool) -> dict[str, Any]:
    """Put the settings of `algo.preset` on top of the recipe's. Overrides are applied later and win.

    A run's own configuration already contains the settings of its preset.
    """
    saved = settings.get("algo", {}).get("preset") if from_target else None
    name = _find_override("algo.preset", overrides) or saved
    if name is None or name == "none":
        return settings
    find_method(name)
    return merge(settings, drop_misfits(settings, read_settings(method_path(name))))


OFF_POLICY_DEFAULTS = {"correction": {"kind": "truncated"}, "old_logprobs": "learner"}
"""Settings of `algo` if the sampler's weights or rounding may differ from the learner's."""


def _apply_off_policy_defaults(settings: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Enable off-policy correction for stale rollouts, stored episodes or non-native engines, unless configured."""
    algo = settings.get("algo", {})

    def find(section: str, name: str) -> Any:
        override = _find_override(f"{section}.{name}", overrides)
        return settings.get(section, {}).get(name) if override is None else override

    engine = str(_find_override("engine", overrides) or find("engine", "kind") or Native.name)
    shares_weights = ENGINES[engine].shares_weights if engine in ENGINES else not is_reference(engine)
    is_on_policy = shares_weights and not find("data", "sources") and str(find("rollout", "max_staleness") or 0) == "0"
    if is_on_policy or any(
        name in algo or _find_override(f"algo.{name}", overrides) is not None for name in OFF_POLICY_DEFAULTS
    ):
        return settings
    return settings | {"algo": algo | OFF_POLICY_DEFAULTS}


def _fit_mini_batch(config: Config, overrides: Overrides) -> Config:
    """Lower a mini-batch that the recipe chose to the size of the batch that the overrides chose."""
    sizes, train = ("rollout.groups", "rollout.group_size"), config.train
    chosen = [_find_override(name, overrides) is not None for name in (*sizes, "train.mini_batch")]
    batch = config.rollout.groups * config.rollout.group_size
    if train.mini_batch <= batch or chosen[-1] or not any(chosen):
        return config
    return config.model_copy(update={"train": train.model_copy(update={"mini_batch": batch})})


def load_recipe(name: str) -> dict[str, Any]:
    find_recipe(name)
    return read_settings(recipe_path(name))
