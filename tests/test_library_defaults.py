"""Environment variables that torch's libraries read when they are loaded."""

import os
import subprocess
import sys

import pytest

from turnwise import LIBRARY_DEFAULTS as DEFAULTS

SHOW = "import sys, os, turnwise; assert 'torch' not in sys.modules; print([os.environ[name] for name in {names}])"


def show(**given: str) -> str:
    """Return the variables after `import turnwise` in a new process."""
    environment = {name: value for name, value in os.environ.items() if name not in DEFAULTS} | given
    program = [sys.executable, "-c", SHOW.format(names=list(DEFAULTS))]
    return subprocess.run(program, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def test_import_sets_library_defaults_before_torch() -> None:
    assert show() == str(list(DEFAULTS.values()))


@pytest.mark.parametrize("name", DEFAULTS)
def test_import_keeps_variables_of_the_user(name: str) -> None:
    assert show(**{name: "7"}) == str([("7" if each == name else value) for each, value in DEFAULTS.items()])


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp shows its settings on Linux")
def test_openmp_waits_without_spinning() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in DEFAULTS}
    program = [sys.executable, "-c", "import turnwise, torch"]
    shown = subprocess.run(
        program, check=True, capture_output=True, text=True, env=environment | {"OMP_DISPLAY_ENV": "VERBOSE"}
    ).stderr
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in shown
    assert "GOMP_SPINCOUNT = '0'" in shown
