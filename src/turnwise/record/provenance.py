"""What made a run: the version of turnwise, and the files of code and data that its settings name.

provenance.json    {"turnwise": "0.1.0", "files": {"/home/me/quiz.py": {"digest": "...", "copy": "sources/0-quiz.py"}}}
sources/           copies of the code as it was when the run began
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.version import installed_version
from turnwise.record.disk import disk_errors, write_aside

FILE = "provenance.json"
SOURCES = "sources"


def write_provenance(run: Path, files: Iterable[Path]) -> None:
    """Record the version and the files' digests, and copy those that are code. Complete or not there."""
    found: dict[str, dict[str, str]] = {}
    with disk_errors(run / FILE, "start again"):
        for number, path in enumerate(files):
            found[str(path)] = {"digest": digest(path)}
            if path.suffix == ".py":
                copy = f"{SOURCES}/{number}-{path.name}"
                (run / SOURCES).mkdir(exist_ok=True)
                write_aside(run / copy, path.read_bytes())
                found[str(path)]["copy"] = copy
        record = {"turnwise": installed_version(), "files": found}
        write_aside(run / FILE, (json.dumps(record, indent=2) + "\n").encode())


def what_changed(run: Path) -> str | None:
    """One line about what is no longer as it was when the run began; None: nothing, or it was not recorded."""
    try:
        record: dict[str, Any] = json.loads((run / FILE).read_bytes())
        recorded, files = record["turnwise"], record["files"].items()
        changes = [f"{path} has changed{_kept(run, about)}" for path, about in files if _differs(path, about)]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{run / FILE} cannot be read: restore it, or delete it") from error
    if recorded != installed_version():
        changes.insert(0, f"it was written by turnwise {recorded}, and this is {installed_version()}")
    return f"note: since {run} began, {'; '.join(changes)}: it may go on differently" if changes else None


def _differs(path: str, about: dict[str, str]) -> bool:
    return not Path(path).is_file() or digest(Path(path)) != about["digest"]


def _kept(run: Path, about: dict[str, str]) -> str:
    return f" (as it was: {run / about['copy']})" if "copy" in about else ""


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
