"""The form of a new run: made from the schema of the settings, and checked by the code of the command line."""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic.fields import FieldInfo

from turnwise.config.keys import FREE_TABLES, Key, all_keys, describe_schema, settings_of
from turnwise.config.schema import Config
from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.envs.agent.settings import AGENT_ENV
from turnwise.envs.catalogue import CATALOGUE
from turnwise.envs.registry import load_spec
from turnwise.envs.settings import NO_ENV
from turnwise.files.run_folders import CONFIG_FILE
from turnwise.models.loading.catalogue import model_names
from turnwise.recipes.presets import find_method, list_recipes, method_names
from turnwise.run.configure import configure
from turnwise.run.run_name import check_run_name
from turnwise.run.setting_names import check_before_torch
from turnwise.settings.section import is_plain
from turnwise.settings.values import NONE, NONE_WORDS
from turnwise.studio.requests import RunRequest
from turnwise.text.truncation import one_line

CHECK_S = 120.0
"""Seconds that a check may take which runs the user's code."""
PLAN_S = 300.0
"""Seconds that a plan may take: it imports torch, and asks servers and the hub."""
PLANNING = Lock()
"""Held by the one plan that is made at a time, each of which takes a core for seconds."""
BOUNDS = {
    "minimum": "min",
    "exclusiveMinimum": "above",
    "maximum": "max",
    "exclusiveMaximum": "below",
}


@cache
def describe_form() -> dict[str, Any]:
    """Return what the page builds the form from: sections, settings, and names to choose from."""
    return {
        "sections": [{"name": name, "doc": _section_doc(name)} for name in Config.model_fields],
        "settings": [_describe_key(key) for key in all_keys().values()],
        "recipes": [{"name": recipe.name, "doc": recipe.summary} for recipe in list_recipes()],
        "environments": [{"name": name, "doc": entry.summary} for name, entry in CATALOGUE.items()],
        "methods": [{"name": name, "doc": find_method(name).summary} for name in method_names()],
        "models": list(model_names()),
    }


def _section_doc(name: str) -> str:
    if name in all_keys():  # a choice, or a setting of the run itself
        return all_keys()[name].doc
    return one_line(Config.model_fields[name].annotation.__doc__ or "")


def _describe_key(key: Key) -> dict[str, Any]:
    """Return a setting with its type, bounds and choices. `kinds`: alternatives of its section that have it."""
    described = {
        "name": key.name,
        "section": key.section.partition(".")[0],
        "doc": key.doc,
        **_describe_type(key.schema),
        "allowed": key.allowed,
        "is_choice": key.choice is not None,
        "takes_own": key.choice is not None and key.choice.base is not None,
        "kinds": list(key.kinds),
        "is_free": key.name in FREE_TABLES,
    }
    return described if key.choice is None else {**described, "names": list(key.choice.table)}


def _describe_type(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON types, names and bounds of a value."""
    parts = schema.get("anyOf", (schema,))
    types = {part.get("type", "object") for part in parts}
    return {
        "types": sorted(types - {"null"}),
        "optional": "null" in types,
        "names": [name for part in parts for name in part.get("enum", ()) if isinstance(name, str)],
        "bounds": {short: part[long] for part in parts for long, short in BOUNDS.items() if long in part},
    }


def type_value(value: Any) -> str:
    """Return a value as it is typed on the command line, which reads it as the same value again."""
    if value is None:
        return NONE
    is_plain = isinstance(value, str) and value[:1] not in ('"', "'", "[") and value.lower() not in NONE_WORDS
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def check_request(request: RunRequest) -> dict[str, Any]:
    """Check the settings of a run as the command line does before it imports torch.

    Returns {"settings", "params"} with all values, or {"error"} in one line. The user's code runs in another process:
    it is loaded anew, and cannot stop the studio.
    """
    if not _runs_code(request):
        return check_here(request)
    command = [sys.executable, "-m", "turnwise.studio.form"]
    try:
        done = subprocess.run(
            command, input=request.model_dump_json(), capture_output=True, text=True, timeout=CHECK_S, check=False
        )
        answer = json.loads(done.stdout.rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return {"error": f"Reading the environment's file took longer than {CHECK_S:g} s. Does it wait for something?"}
    except ValueError:
        return {"error": f"Checking the settings failed: {one_line(done.stderr)[-400:] or 'no answer'}"}
    if not isinstance(answer, dict):
        return {"error": "Checking the settings failed: no answer"}
    return answer


def plan_request(request: RunRequest) -> dict[str, Any]:
    """Return the plan that `turnwise train ... --dry-run` prints, or {"error"} in one line. It runs as a process."""
    command = [sys.executable, "-m", "turnwise", *request.spell(), "--dry-run", "--json"]
    with PLANNING:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PLAN_S, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"The plan took longer than {PLAN_S:g} s. Does a server of the run not answer?"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["The plan failed."]
        return {"error": lines[-1].removeprefix("turnwise: ")}
    plan: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["plan"]
    return plan


def _runs_code(request: RunRequest) -> bool:
    """Return whether the request or the run that it starts from names code of the user."""
    if request.names_code:
        return True
    runs = [Path(run) / CONFIG_FILE for run in (request.start_from, request.resume) if run]
    files = [*runs, *([Path(request.target)] if request.target.endswith(".toml") else [])]
    try:
        return any(".py" in path.read_text(encoding="utf-8", errors="replace") for path in files)
    except OSError:  # which the check reports
        return False


def check_here(request: RunRequest) -> dict[str, Any]:
    try:
        config = configure_request(request)
        check_before_torch(config, resume=bool(request.resume))
        if not request.resume:
            check_run_name(config.record)
        return {"settings": _list_settings(config), "params": _list_params(config)}
    except (UserError, EnvironmentFailure) as error:
        return {"error": one_line(str(error))}


def configure_request(request: RunRequest) -> Config:
    """Return the configuration of the run that the request's command line starts."""
    is_sft = request.command == "sft"
    overrides = request.overrides
    if is_sft and not request.resume and "sft.demos" not in request.settings:
        overrides.append(("sft.demos", "solver"))
    return configure(
        request.target or None,
        like=request.like or None,
        start_from=request.start_from or None,
        resume=request.resume or None,
        overrides=overrides,
        full_context=is_sft,
    )


def _list_settings(config: Config) -> dict[str, dict[str, Any]]:
    """Return every setting of the run: its value as typed, and whether it differs from the default."""
    return {
        setting.key: {"value": type_value(setting.value), "changed": bool(setting.note)}
        for setting in settings_of(config)
    }


def _list_params(config: Config) -> list[Mapping[str, Any]]:
    """Return the parameters of the environment, described as settings are."""
    if config.env.kind in (NO_ENV, AGENT_ENV):
        return []
    spec = load_spec(config.env.kind)
    schemas, fields = spec.params_model.model_json_schema()["properties"], spec.params_model.model_fields
    return [
        {
            "name": f"env.params.{parameter.name}",
            "doc": parameter.description,
            **_describe_type(schemas[parameter.name]),
            "allowed": describe_schema(schemas[parameter.name]),
            "default": _type_default(fields[parameter.name]),
        }
        for parameter in spec.parameters()
    ]


def _type_default(field: FieldInfo) -> str:
    """Return the default of a parameter as it is typed; "" for a required one, or one that depends on others."""
    if field.is_required() or field.default_factory_takes_validated_data:
        return ""
    value = field.get_default(call_default_factory=True)
    return type_value(value) if is_plain(value) else ""


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(check_here(RunRequest.model_validate_json(sys.stdin.read()))))
