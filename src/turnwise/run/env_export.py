"""`turnwise envs export`: write a small package with which another library runs an environment."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from turnwise.core.errors import UserError
from turnwise.envs.registry import ENVIRONMENTS
from turnwise.envs.runner import MAX_REWARD
from turnwise.envs.spec import EnvSpec

Target = Literal["openenv", "verifiers", "gymnasium"]
COPY = "environment.py"
"""Name of the user's file in the package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Facts from which a package is written."""

    package: str
    """Name of the package and its module."""
    title: str
    """Name of the environment as part of class names."""
    summary: str
    environment: str
    """Python expression of the environment's name."""
    params: Mapping[str, Any]

    @property
    def settings(self) -> str:
        return (
            f"ENVIRONMENT = {self.environment}\nPARAMS = json.loads({json.dumps(dict(self.params), sort_keys=True)!r})"
        )


def export_environment(spec: EnvSpec, params: Mapping[str, Any], target: Target, out: Path | None) -> Path:
    """Write the package and return its folder. Raises UserError if that is not empty, or there is no file to copy."""
    file = _source(spec)
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", spec.name).lower()
    exported = Exported(
        package=f"turnwise_{name}",
        title="".join(word.capitalize() for word in name.split("_")),
        summary=spec.summary,
        environment=repr(spec.name)
        if file is None
        else f'f"{{Path(__file__).with_name({COPY!r})}}:{spec.id.rpartition(":")[2]}"',
        params=params,
    )
    folder = out or Path(exported.package)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose another folder with --out.")
    files, code = TARGETS[target](exported)
    if file is not None:
        files |= {f"{code}/{COPY}": file.read_text(encoding="utf-8")}
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def _source(spec: EnvSpec) -> Path | None:
    """Return the file of a user's environment; None for a built-in one."""
    if spec.id in ENVIRONMENTS:
        return None
    file = Path(spec.id.rpartition(":")[0])
    if not file.is_file():
        raise UserError(f"{spec.name} is in no file: export a built-in environment or FILE.py:Class.")
    return file


def _openenv(exported: Exported) -> tuple[dict[str, str], str]:
    title, package = exported.title, exported.package
    app = f'''"""{title} as a server of OpenEnv's protocol."""

import json
import os
from pathlib import Path

import uvicorn

from turnwise.service.openenv.application import make_application

{exported.settings}
HOST = os.environ.get("HOST", "127.0.0.1")  # for other machines: 0.0.0.0, and a token in OPENENV_TOKEN
app = make_application(ENVIRONMENT, PARAMS, host=HOST)


def main() -> None:
    uvicorn.run(app, host=HOST, port=int(os.environ.get("PORT", "8000")))


if __name__ == "__main__":
    main()
'''
    manifest = f"""spec_version: 1
name: {package}
version: 0.1.0
type: space
runtime: fastapi
app: server.app:app
port: 8000
validation:
  reward:
    range: [-{MAX_REWARD}, {MAX_REWARD}]  # what turnwise accepts: narrow it to this environment's
    oracle_tolerance: 0.0
    floor_margin: 0.1
  resources: {{cpu: 1.0, memory_mb: 2048, disk_mb: 1024, episode_timeout_s: 600.0}}
  capabilities:
    verifier: {{kind: reward_channel}}
  types:
    tags: [turnwise]
"""
    project = _project(
        exported,
        ["turnwise[openenv]", "openenv>=0.10"],
        '[project.scripts]\nserver = "server.app:main"\n\n[tool.hatch.build.targets.wheel]\npackages = ["server"]\n',
    )
    readme = _readme(
        exported, ".[openenv]", "pip install -e .\nopenenv validate . --level static\npython -m server.app\n"
    )
    files = {"openenv.yaml": manifest, "pyproject.toml": project, "README.md": readme}
    return {**files, "server/__init__.py": "", "server/app.py": app}, "server"


def _verifiers(exported: Exported) -> tuple[dict[str, str], str]:
    title, package = exported.title, exported.package
    code = f'''"""{title} as a taskset of verifiers."""

import json
from pathlib import Path

from turnwise.service.verifiers_taskset import ExportedEnv, ExportedHarness, ExportedTaskset

{exported.settings}


class {title}Taskset(ExportedTaskset):
    environment = ENVIRONMENT
    params = PARAMS


class {title}Harness(ExportedHarness):
    environment = ENVIRONMENT


class {title}Env(ExportedEnv):
    pass


__all__ = ["{title}Env", "{title}Harness", "{title}Taskset"]
'''
    readme = _readme(exported, ".", f"pip install -e .\nvf-eval {package} --model MODEL -n 10\n")
    project = _project(exported, ["turnwise", "verifiers>=0.4"], "")
    return {f"{package}/__init__.py": code, "pyproject.toml": project, "README.md": readme}, package


def _gymnasium(exported: Exported) -> tuple[dict[str, str], str]:
    title, package = exported.title, exported.package
    code = f'''"""{title} as an environment of Gymnasium."""

import json
from pathlib import Path
from typing import Any

import gymnasium

import turnwise as tw

ID = "turnwise/{title}-v0"
{exported.settings}


def make(**options: Any) -> gymnasium.Env:
    return tw.to_gymnasium(ENVIRONMENT, **{{**PARAMS, **options}})


def register() -> None:
    if ID not in gymnasium.registry:
        gymnasium.register(id=ID, entry_point=make)


register()
'''
    program = f"import gymnasium; print(gymnasium.make('turnwise/{title}-v0').reset(seed=0))"
    readme = _readme(exported, ".[gymnasium]", f'pip install -e .\npython -c "{program}"\n')
    plugin = f'[project.entry-points."gymnasium.envs"]\n__root__ = "{package}:register"\n'
    project = _project(exported, ["turnwise[gymnasium]"], plugin)
    return {f"{package}/__init__.py": code, "pyproject.toml": project, "README.md": readme}, package


def _project(exported: Exported, dependencies: list[str], more: str) -> str:
    head = f'''[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{exported.package.replace("_", "-")}"
version = "0.1.0"
description = {json.dumps(exported.summary)}
readme = "README.md"
requires-python = ">=3.11"
dependencies = {json.dumps(dependencies)}
'''
    return f"{head}\n{more}" if more else head


def _readme(exported: Exported, turnwise: str, commands: str) -> str:
    """Return the text of README.md. `turnwise`: what pip installs in a clone of turnwise."""
    return f"""# {exported.package}

{exported.summary}

Written by `turnwise envs export`. The package needs turnwise in the same Python: install it first, with
`pip install '{turnwise}'` in a clone of its repository. Then, in this folder:

```
{commands}```
"""


TARGETS: dict[Target, Callable[[Exported], tuple[dict[str, str], str]]] = {
    "openenv": _openenv,
    "verifiers": _verifiers,
    "gymnasium": _gymnasium,
}
"""Target -> files of its package by their path, and the folder of its code."""
