"""From what a person typed to a checked configuration, in a fraction of a second: torch is not needed for it."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config.load import Overrides, build, find_run, read_run, read_settings
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.suggestions import closest_match, suggest
from turnwise.envs.registry import ENVIRONMENTS
from turnwise.recipes.environment_mix import build_environment_mix
from turnwise.record.provenance import check_code_files

CODE = re.compile(r"[^\n]+\.py:\w+")
FILE = re.compile(rf"[^\n]+\.(?:jsonl|csv)|{CODE.pattern}")
PATHS = ("index", "database", "cwd", "key_file", "cache")
"""Options of tools and rewards that are paths, whatever they look like."""
MAY_CHANGE = ("train.max_minutes",)
"""What a resumed run may be given anew: it does not change what is learnt."""


def configure(
    target: str | None = None, *, start_from: str | None = None, resume: str | None = None, overrides: Overrides = ()
) -> Config:
    """The configuration of a run to be: from a preset or environment, from another run's, or of a run to go on with."""
    if resume is not None and (changed := [key for key, _ in overrides if key not in MAY_CHANGE]):
        raise UserError(
            f"--resume goes on with the run's own settings, so leave out --{changed[0]}: "
            f"another run with it starts with --from {resume}"
        )
    settings = _base(target, start_from, resume)
    config = build(_with_method(settings, overrides, fresh=target is not None), overrides)
    config = place_files(config)
    if resume is not None:
        check_code_files(find_run(resume))
    build_environment_mix(config)
    return config


def place_files(config: Config) -> Config:
    """Files of code and data by their whole path, so that the run can be resumed from any working directory."""
    env, algo, context, model, sft = config.env, config.algo, config.context, config.model, config.sft
    mix = {name: _placed_env(given) if isinstance(given, dict) else given for name, given in env.mix.items()}
    template = None if model.chat_template is None else str(Path(model.chat_template).expanduser().resolve())
    rules = {name: _whole(getattr(algo, name), Path()) for name in ("loss_tokens", "advantage_tokens")}
    return config.model_copy(
        update={
            "env": env.model_copy(update=_placed_env({"kind": env.kind, "params": env.params}) | {"mix": mix}),
            "model": model.model_copy(update={"chat_template": template}),
            "context": context.model_copy(update={"summary_by": _whole(context.summary_by, Path())}),
            "reward": config.reward.model_copy(update=_placed_rewards(dict(config.reward), Path())),
            "algo": algo.model_copy(update=rules),
            "sft": sft.model_copy(update={"demos": _whole(sft.demos, Path())}),
        }
    )


def _placed_env(table: dict[str, Any]) -> dict[str, Any]:
    """An environment's table: its class, and the files among its parameters."""
    placed = table | {name: _whole(table[name], Path()) for name in ("kind",) if name in table}
    if isinstance(table.get("params"), dict):
        placed["params"] = {name: _whole(value, Path()) for name, value in table["params"].items()}
    return placed


def source_files(config: Config) -> list[Path]:
    """The files of code and data that the settings of a configured run name."""
    return sorted({file for text in _texts(config.model_dump()) if (file := _named_file(text)) and _is_file(file)})


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # text that is too long for a path
        return False


def _texts(value: Any) -> Iterator[str]:
    """All text in nested tables and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _named_file(text: str) -> Path | None:
    """The file that FILE.py:name, FILE.jsonl or FILE.csv names; None: the text names none."""
    return Path(text.rpartition(":")[0] if CODE.fullmatch(text) else text) if FILE.fullmatch(text) else None


def _placed_rewards(reward: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The table `reward`, its functions and its judges' files likewise. A judge's other options are words."""
    functions, judges = reward.get("functions"), reward.get("judges")
    found = dict(reward)
    if isinstance(functions, list | tuple):
        found["functions"] = tuple(_whole(functions, folder))
    if isinstance(judges, list | tuple):
        found["judges"] = tuple(_placed_judge(each, folder) if isinstance(each, dict) else each for each in judges)
    return found


def _placed_judge(judge: dict[str, Any], folder: Path) -> dict[str, Any]:
    return judge | _whole_table({name: judge[name] for name in PATHS if judge.get(name)}, folder)


def _whole(value: Any, folder: Path) -> Any:
    """What names a file of data or of code, as that file in `folder`; anything else as it is."""
    if isinstance(value, list | tuple):
        return [_whole(each, folder) for each in value]
    if isinstance(value, dict):
        return _whole_table(value, folder)
    if not isinstance(value, str) or not FILE.fullmatch(value):
        return value
    file, colon, name = value.partition(".py:")
    place = folder / Path(f"{file}.py" if colon else value).expanduser()
    return f"{place.resolve()}{f':{name}' if colon else ''}"


def _whole_table(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A tool or a reward with its options; a server's command runs where the settings are."""
    found = {
        name: str((folder / Path(value).expanduser()).resolve())
        if name in PATHS and isinstance(value, str) and value
        else (_whole(value, folder) if name == "use" else value)
        for name, value in table.items()
    }
    is_command = isinstance(table.get("mcp"), str) and not table["mcp"].startswith(("http://", "https://"))
    return {"cwd": str(folder.resolve())} | found if is_command else found


def load_recipe(name: str) -> dict[str, Any]:
    """The settings of a preset, not yet checked."""
    find_recipe(name)
    return read_settings(recipe_path(name))


def settings_for(target: str) -> dict[str, Any]:
    """What `turnwise train TARGET` starts from: a preset, a file of settings, or the defaults with that environment."""
    if target in recipe_names():
        return load_recipe(target)
    if target.endswith(".toml"):
        return _from_file(Path(target))
    if target in ENVIRONMENTS or ".py" in target:
        return {"env": {"kind": target}}
    if closest_match(Path(target).suffix, [".toml", ".py"]) or Path(target).is_file():
        raise UserError(f"{target}: settings are read from FILE.toml, an environment from FILE.py:Class: rename it")
    near = suggest(target, [*recipe_names(), *ENVIRONMENTS])
    raise UserError(f'unknown recipe or environment "{target}":{near} (`turnwise recipes` and `envs` list them)')


def _from_file(path: Path) -> dict[str, Any]:
    """Files that the tables of the environment and of the rewards name are looked for beside it."""
    settings = read_settings(path)
    if isinstance(settings.get("reward"), dict):
        settings["reward"] = _placed_rewards(settings["reward"], path.parent)
    env = settings.get("env")
    if isinstance(env, dict):
        params = env.get("params", {})
        placed = {name: _whole(value, path.parent) for name, value in env.items() if name != "params"}
        if isinstance(params, dict):
            params = {name: _whole(value, path.parent) for name, value in params.items()}
        settings["env"] = placed | ({"params": params} if "params" in env else {})
    return settings


def _base(target: str | None, start_from: str | None, resume: str | None) -> dict[str, Any]:
    match (target, start_from, resume):
        case (str(), None, None):
            return settings_for(target)
        case (None, str(), None):
            return _with_record(read_run(start_from), name=None)  # a new run, with a name of its own
        case (None, None, str()):
            folder = find_run(resume)
            return _with_record(read_run(resume), folder=str(folder.parent), name=folder.name)
    raise UserError(
        "give one of RECIPE, --from RUN and --resume RUN: `turnwise recipes` lists the recipes "
        "(with --from, another environment is --env.kind NAME)"
    )


def _with_method(settings: dict[str, Any], overrides: Overrides, *, fresh: bool) -> dict[str, Any]:
    """The settings of `algo.preset` above the recipe's and below what was typed. A run's own hold them already."""
    typed = [value for key, value in overrides if key.replace("-", "_") == "algo.preset"]
    name = typed[-1] if typed else settings.get("algo", {}).get("preset") if fresh else None
    if name is None or name == "none":
        return settings
    find_method(name)
    merged = dict(settings)
    for section, values in read_settings(method_path(name)).items():
        merged[section] = merged.get(section, {}) | values
    return merged


def _with_record(settings: dict[str, Any], **record: Any) -> dict[str, Any]:
    return settings | {"record": settings.get("record", {}) | record}


FOLDER = Path(__file__).parent
METHODS = FOLDER / "algos"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    name: str
    summary: str
    """The comment that opens its file."""
    environment: str
    text: str
    """The file as it is."""


def recipe_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def list_recipes() -> list[Recipe]:
    return [find_recipe(name) for name in recipe_names()]


def find_recipe(name: str) -> Recipe:
    """The preset of this name; an unknown one is an error that names the nearest."""
    names = recipe_names()
    if name not in names:
        raise UserError(f'unknown recipe "{name}":{suggest(name, names)} (`turnwise recipes` lists them)')
    text = recipe_path(name).read_text(encoding="utf-8")
    summary = text.partition("\n")[0].removeprefix("#").strip()
    return Recipe(name=name, summary=summary, environment=tomllib.loads(text)["env"]["kind"], text=text)


def recipe_path(name: str) -> Path:
    return FOLDER / f"{name}.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A published method: settings that are put on top of a recipe's, as `--algo.preset NAME`."""

    name: str
    summary: str
    text: str


def method_names() -> list[str]:
    return sorted(path.stem for path in METHODS.glob("*.toml"))


def find_method(name: str) -> Method:
    if name not in method_names():
        raise UserError(f'unknown algo.preset "{name}":{suggest(name, method_names())}')
    text = method_path(name).read_text(encoding="utf-8")
    return Method(name=name, summary=text.partition("\n")[0].removeprefix("#").strip(), text=text)


def method_path(name: str) -> Path:
    return METHODS / f"{name}.toml"
