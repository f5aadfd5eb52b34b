"""Provenance of a run: the version of turnwise, and the files of code and data that its settings name.

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
from turnwise.record.disk import wrap_disk_errors, write_atomic

FILE = "provenance.json"
SOURCES = "sources"


def write_provenance(run: Path, files: Iterable[Path]) -> None:
    """Record the version and the files' digests, and copy those that are code. Complete or not there."""
    found: dict[str, dict[str, str]] = {}
    with wrap_disk_errors(run / FILE, "start again"):
        for number, path in enumerate(files):
            found[str(path)] = {"digest": file_digest(path)}
            if path.suffix == ".py":
                copy = f"{SOURCES}/{number}-{path.name}"
                (run / SOURCES).mkdir(exist_ok=True)
                write_atomic(run / copy, path.read_bytes())
                found[str(path)]["copy"] = copy
        record = {"turnwise": installed_version(), "files": found}
        write_atomic(run / FILE, (json.dumps(record, indent=2) + "\n").encode())


def check_code_files(run: Path) -> None:
    """Raise a UserError that names the run's own copy where code that the run needs is missing."""
    for path, about in _read(run)["files"].items():
        if "copy" in about and not Path(path).is_file():
            raise UserError(f"{path} is missing, and {run} needs it: restore it from the copy {run / about['copy']}")


def describe_changes(run: Path) -> str | None:
    """One line about what is no longer as it was when the run began; None: nothing, or it was not recorded."""
    record = _read(run)
    changes = [
        f"{path} {change}{_kept(run, about)}"
        for path, about in record["files"].items()
        if (change := _change(Path(path), about["digest"]))
    ]
    if (recorded := record["turnwise"]) != installed_version():
        changes.insert(0, f"it was written by turnwise {recorded}, and this is {installed_version()}")
    return f"note: since {run} began, {'; '.join(changes)}: it may go on differently" if changes else None


def _read(run: Path) -> dict[str, Any]:
    """Return what was recorded; a run of an earlier version recorded nothing."""
    try:
        record = json.loads((run / FILE).read_bytes())
        files = {str(path): {"digest": about["digest"], **about} for path, about in record["files"].items()}
        return {"turnwise": record["turnwise"], "files": files}
    except FileNotFoundError:
        return {"turnwise": installed_version(), "files": {}}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{run / FILE} cannot be read: restore it, or delete it") from error


def _change(path: Path, recorded: str) -> str | None:
    if not path.is_file():
        return "is missing"
    try:
        return "has changed" if file_digest(path) != recorded else None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _kept(run: Path, about: dict[str, str]) -> str:
    return f" (as it was: {run / about['copy']})" if "copy" in about else ""


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
