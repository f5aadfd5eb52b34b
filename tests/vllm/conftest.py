"""Tests with the real vLLM, in the environment that `make test-vllm` makes; elsewhere they are not collected.

vLLM takes most of a minute to start on a CPU, so the tests of a module share an engine and its event loop.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnwise
from turnwise.engine.vllm.installation import installed_vllm

collect_ignore_glob = [] if installed_vllm() else ["test_*.py"]
SOURCE = Path(turnwise.__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def importable_in_servers() -> Iterator[None]:
    """Let the servers that tests start import turnwise, which that environment does not install."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")])))
        yield


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of a module's tests."""
    with asyncio.Runner() as each:
        yield each
