"""Shared by the tests with the real verifiers: they need its Python environment, and end its servers."""

from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from turnwise.envs.adapters import server_process
from verifiers_for_tests import CLASSIC


@pytest.fixture(scope="module", autouse=True)
def verifiers(optional_part: Callable[..., NoReturn]) -> Iterator[None]:
    if not CLASSIC.exists():
        optional_part("verifiers is not installed: make test installs it into .venv-verifiers")
    yield
    server_process.end_servers()
