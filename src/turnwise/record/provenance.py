"""Provenance of a run: the version of turnwise, and the files of code and data that its settings name.

provenance.json    {"turnwise": "0.1.0", "files": {"/home/me/quiz.py": {"digest": "...", "copy": "sources/0-quiz.py"}}}
sources/           copies of the code files at the start of the run
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from turnwise.config.load import PROVENANCE_FILE as FILE
from turnwise.config.version import installed_version
from turnwise.core.errors import UserError
from turnwise.files.disk import wrap_disk_errors, write_atomic

SOURCES = "sources"


def write_provenance(run: Path, files: Iterable[Path]) -> None:
    """Record the version and the files' digests, and copy code files. `provenance.json` is written last."""
    entries: dict[str, dict[str, str]] = {}
    with wrap_disk_errors(run / FILE, "start again"):
        for number, path in enumerate(files):
            entries[str(path)] = {"digest": file_digest(path)}
            if path.suffix == ".py":
                copy = f"{SOURCES}/{number}-{path.name}"
                (run / SOURCES).mkdir(exist_ok=True)
                write_atomic(run / copy, path.read_bytes())
                entries[str(path)]["copy"] = copy
        record = {"turnwise": installed_version(), "files": entries}
        write_atomic(run / FILE, (json.dumps(record, indent=2) + "\n").encode())


def check_code_files(run: Path) -> None:
    """Raise a UserError if a code file of the run is missing. The error names the run's copy of it."""
    for path, entry in _read(run)["files"].items():
        if "copy" in entry and not Path(path).is_file():
            raise UserError(f"{path} is missing, and {run} needs it. Restore it from the copy {run / entry['copy']}.")


def describe_changes(run: Path) -> str | None:
    """Describe in one line which files and version differ from the start of the run. None if nothing differs."""
    record = _read(run)
    changes = [
        f"{path} {change}{_copy_hint(run, entry)}"
        for path, entry in record["files"].items()
        if (change := _change(Path(path), entry["digest"]))
    ]
    if (recorded := record["turnwise"]) != installed_version():
        changes.insert(0, f"turnwise was {recorded} and is {installed_version()}")
    return (
        f"note: changed since {run} started, so it may continue differently: {'; '.join(changes)}" if changes else None
    )


def _read(run: Path) -> dict[str, Any]:
    """Return the recorded provenance; a run of an early version of turnwise has none."""
    try:
        record = json.loads((run / FILE).read_bytes())
        files = {str(path): {"digest": entry["digest"], **entry} for path, entry in record["files"].items()}
        return {"turnwise": record["turnwise"], "files": files}
    except FileNotFoundError:
        return {"turnwise": installed_version(), "files": {}}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"Cannot read {run / FILE}. Restore or delete it.") from error


def _change(path: Path, recorded: str) -> str | None:
    if not path.is_file():
        return "is missing"
    try:
        return "has changed" if file_digest(path) != recorded else None
    except OSError as error:
        raise UserError(f"Cannot read {path} ({error.strerror}).") from error


def _copy_hint(run: Path, entry: dict[str, str]) -> str:
    return f" (original: {run / entry['copy']})" if "copy" in entry else ""


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
