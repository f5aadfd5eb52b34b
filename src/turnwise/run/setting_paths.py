"""Paths in settings: files of code and data that they name, made absolute."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise.algos.settings import TOKEN_RULES
from turnwise.config.load import read_settings
from turnwise.config.schema import Config
from turnwise.envs.agent.settings import StartedAgent
from turnwise.rollout.context_settings import Summary
from turnwise.settings.choice import KIND, Choice
from turnwise.settings.section import Section

CODE = re.compile(r"[^\n]+\.py:\w+")
FILE = re.compile(rf"(?!hf://)[^\n]+\.(?:jsonl?|csv|parquet|arrow)|{CODE.pattern}")
PATH_OPTIONS = ("index", "database", "cwd", "key_file", "cache")
"""Options of tools and rewards that are always paths."""


def resolve_paths(config: Config) -> Config:
    """Make paths of code and data absolute, so that the run can be resumed from any working directory."""
    env, algo, context, model, sft = config.env, config.algo, config.context, config.model, config.sft
    if isinstance(context, Summary):
        context = context.model_copy(update={"summary": _resolve(context.summary, Path())})
    mix = {name: _resolve_env(entry) if isinstance(entry, dict) else entry for name, entry in env.mix.items()}
    template = None if model.chat_template is None else str(Path(model.chat_template).expanduser().resolve())
    rules = {name: _resolve(getattr(algo, name), Path()) for name in TOKEN_RULES}
    return config.model_copy(
        update={
            "env": env.model_copy(update=_resolve_env({"kind": env.kind, "params": env.params}) | {"mix": mix}),
            "agent": config.agent.model_copy(update=_resolve_agent(dict(config.agent), Path())),
            "model": model.model_copy(update={"chat_template": template}),
            "context": context,
            "engine": _resolve_choice(config.engine),
            "reward": config.reward.model_copy(update=_resolve_rewards(dict(config.reward), Path())),
            "rollout": config.rollout.model_copy(update=_resolve_own_choices(config.rollout)),
            "algo": algo.model_copy(update=rules | _resolve_own_choices(algo)),
            "sft": sft.model_copy(update={"demos": _resolve(sft.demos, Path())}),
            "data": config.data.model_copy(
                update={
                    "sources": tuple(_resolve_source(source, config.record.folder) for source in config.data.sources)
                }
            ),
        }
    )


def _resolve_own_choices(section: Section) -> dict[str, Choice]:
    """Return the user's alternatives (FILE.py:name) among the choices of a section, with absolute paths."""
    values = {name: getattr(section, name) for name in type(section).model_fields}
    return {name: _resolve_choice(value) for name, value in values.items() if isinstance(value, Choice)}


def _resolve_choice(choice: Choice) -> Choice:
    return choice if choice.name else choice.with_reference(_resolve(choice.kind, Path()))


def _resolve_source(source: str, runs: str) -> str:
    """Make a source of stored episodes absolute: a path, or else the name of a run in the folder of runs."""
    paths = (Path(source).expanduser(), Path(runs) / source)
    return next((str(path.resolve()) for path in paths if path.exists()), source)


def read_settings_file(path: Path) -> dict[str, Any]:
    """Read a file of settings. Files named in its tables `env`, `agent` and `reward` are relative to its folder."""
    settings = read_settings(path)
    if isinstance(settings.get("agent"), dict):
        settings["agent"] = _resolve_agent(settings["agent"], path.parent)
    if isinstance(settings.get("reward"), dict):
        settings["reward"] = _resolve_rewards(settings["reward"], path.parent)
    env = settings.get("env")
    if isinstance(env, dict):
        params = env.get("params", {})
        resolved = {name: _resolve(value, path.parent) for name, value in env.items() if name != "params"}
        if isinstance(params, dict):
            params = {name: _resolve(value, path.parent) for name, value in params.items()}
        settings["env"] = resolved | ({"params": params} if "params" in env else {})
    return settings


def _resolve_env(table: dict[str, Any]) -> dict[str, Any]:
    """Resolve an environment's class file and the files among its parameters."""
    resolved = table | {name: _resolve(table[name], Path()) for name in ("kind",) if name in table}
    if isinstance(table.get("params"), dict):
        resolved["params"] = {name: _resolve(value, Path()) for name, value in table["params"].items()}
    return resolved


def _resolve_agent(agent: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve the agent's files: those of its function, tasks and reward, and those named in its command."""
    resolved = agent | {
        name: _resolve(agent[name], folder) for name in ("function", "tasks", "reward", "random_reply") if name in agent
    }
    words = _command_words(agent.get("command"))
    files = {word: str((folder / word).resolve()) for word in words if is_file(folder / word)}
    if files:
        resolved["command"] = shlex.join(files.get(word, word) for word in words)
    return resolved


def _command_words(command: Any) -> list[str]:
    """Return the words of agent.command; [] without one, or if its quotes are not closed."""
    try:
        return shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        return []


def _resolve_rewards(reward: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve the files of reward functions and judges."""
    functions, judges = reward.get("functions"), reward.get("judges")
    resolved = dict(reward)
    if isinstance(functions, list | tuple):
        resolved["functions"] = tuple(_resolve(functions, folder))
    if isinstance(judges, list | tuple):
        resolved["judges"] = tuple(
            _resolve_judge(judge, folder) if isinstance(judge, dict) else judge for judge in judges
        )
    return resolved


def _resolve_judge(judge: dict[str, Any], folder: Path) -> dict[str, Any]:
    return judge | _resolve_table({name: judge[name] for name in PATH_OPTIONS if judge.get(name)}, folder)


def _resolve(value: Any, folder: Path) -> Any:
    """Make the names of data and code files in a value absolute, relative to `folder`; leave the rest unchanged."""
    if isinstance(value, list | tuple):
        return [_resolve(item, folder) for item in value]
    if isinstance(value, dict):
        return _resolve_table(value, folder)
    if isinstance(value, Choice):
        return _resolve_choice(value)
    if not isinstance(value, str) or not FILE.fullmatch(value):
        return value
    file, colon, name = value.partition(".py:")
    path = folder / Path(f"{file}.py" if colon else value).expanduser()
    return f"{path.resolve()}{f':{name}' if colon else ''}"


def _resolve_table(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve the options of a tool or reward. A server's command runs in `folder`."""
    resolved = {
        name: str((folder / Path(value).expanduser()).resolve())
        if name in PATH_OPTIONS and isinstance(value, str) and value
        else (_resolve(value, folder) if name in ("use", KIND) else value)
        for name, value in table.items()
    }
    is_command = isinstance(table.get("mcp"), str) and not table["mcp"].startswith(("http://", "https://"))
    return {"cwd": str(folder.resolve())} | resolved if is_command else resolved


def source_files(config: Config) -> list[Path]:
    """Return the files of code and data that the settings name."""
    started = config.agent.started if isinstance(config.agent, StartedAgent) else ""
    texts = [*_texts(config.model_dump()), *(f"{word}:agent" for word in _command_words(started))]
    return sorted({file for text in texts if (file := _named_file(text)) and is_file(file)})


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the text is too long for a path
        return False


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in nested tables and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _named_file(text: str) -> Path | None:
    """Return the file that FILE.py:name, FILE.jsonl, FILE.json or FILE.csv names; None if the text has no such form."""
    return Path(text.rpartition(":")[0] if CODE.fullmatch(text) else text) if FILE.fullmatch(text) else None
