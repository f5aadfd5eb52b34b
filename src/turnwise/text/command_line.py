"""Commands of turnwise as the user can type them."""

import os
import shlex
import shutil
import sys
from pathlib import Path

PROGRAM = "turnwise"


def spell_command(*words: object) -> str:
    """Return a turnwise command line, quoted for the shell: `turnwise eval runs/lake`.

    Without an activated environment `turnwise` is not on the PATH: then it starts with the path of this installation,
    such as `.venv/bin/turnwise`.
    """
    return " ".join([_program(), *(shlex.quote(str(word)) for word in words)])


def _program() -> str:
    on_path, here = shutil.which(PROGRAM), _this_program()
    if here is None:
        return PROGRAM if on_path else f"{shlex.quote(sys.executable)} -m {PROGRAM}"
    if on_path and Path(on_path).samefile(here):
        return PROGRAM
    return shlex.quote(str(here))


def _this_program() -> Path | None:
    """Return the path by which this process was started or, in a Python program, of the command beside its Python."""
    started = Path(sys.argv[0])
    if started.stem == PROGRAM and started.is_file():
        return started
    beside = Path(sys.executable).with_name(PROGRAM)
    if not beside.is_file():
        return None
    relative = Path(os.path.relpath(beside))
    return beside if relative.parts[0] == os.pardir else relative
