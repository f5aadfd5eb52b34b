"""Import the module of an environment: installed, a folder, or a file."""

import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from turnwise.envs.adapters.verifiers.host.episode import describe


class LoadFailure(Exception):
    """The environment cannot be loaded. The message is one line for the user."""


def import_environment(target: str) -> ModuleType:
    """Import NAME, OWNER/NAME, a FILE.py, or a folder as `vf-init` makes it. Raises LoadFailure."""
    path = Path(target)
    if path.exists() or target.endswith(".py") or target.startswith((".", "/")):
        folder, name = _split(path)
        sys.path.insert(0, str(folder))
        paths = filter(None, (str(folder), os.environ.get("PYTHONPATH")))
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # verifiers runs the servers of a Toolset as python -m MODULE
    else:
        name = _module_name(target.rpartition("/")[2].partition("@")[0])
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise LoadFailure(f'There is no module "{name}" here: install the environment {target}') from error
        raise LoadFailure(f"{target} cannot be imported: {describe(error)}") from error
    except AttributeError as error:
        if getattr(error.obj, "__name__", "") == "verifiers":
            raise wrong_generation(target, error) from error
        raise LoadFailure(f"{target} cannot be imported: {describe(error)}") from error
    except (Exception, SystemExit) as error:
        raise LoadFailure(f"{target} cannot be imported: {describe(error)}") from error


def wrong_generation(target: str, error: Exception) -> LoadFailure:
    return LoadFailure(
        f"{target} is of verifiers' first generation, which verifiers 0.3.1 was the last to have, and this is "
        f"{version('verifiers')} ({describe(error)})"
    )


def _split(path: Path) -> tuple[Path, str]:
    """Return the folder to import from and the name of the module."""
    path = path.resolve()
    if path.suffix == ".py" and path.is_file():
        return path.parent, path.stem
    if not path.is_dir():
        raise LoadFailure(f"{path} is neither a folder nor a file")
    name = _module_name(path.name)
    if (path / "__init__.py").is_file():
        return path.parent, path.name
    for folder in (path, path / "src"):
        if (folder / name / "__init__.py").is_file() or (folder / f"{name}.py").is_file():
            return folder, name
    raise LoadFailure(f"{path} has no {name}.py and no folder {name}: name the file of the environment")


def _module_name(name: str) -> str:
    return name.replace("-", "_")
