"""Shared by all tests: a separate cache, no network, and handling of optional dependencies."""

import os
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import settings

from browser_fixtures_for_tests import browser_address, browser_path, connected_browser  # noqa: F401
from turnwise.engine.openai.dialect import dialect_for

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anything imports huggingface_hub
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # as if activated
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background; tests of Ctrl-C need the handler
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup: tests hang up all the same
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
# No deadline: a busy machine must not fail tests. `make test` draws the same examples every time, so that a commit
# fails for what it changed; `make soak` draws new ones.
settings.register_profile("turnwise", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("soak", deadline=None, max_examples=100 * SOAK, print_blob=True)
settings.load_profile("turnwise" if SOAK == 1 else "soak")


MAY_BE_MISSING = {
    "textworld": "it brings spaCy and compiles an interpreter of adventures, minutes and 350 MB: make test-adapters",
    "podman": "containers need privileges that not every machine gives; apt-get install podman runc",
    "npm": "make test installs it where node is, and npm's registry can be reached",
}
"""Dependencies whose tests may be skipped even with TURNWISE_REQUIRE_ALL=1: name -> reason, and how to install it."""


def skip_or_fail(reason: str, part: str = "") -> NoReturn:
    """Skip a test whose optional dependency is missing, or fail it if TURNWISE_REQUIRE_ALL=1."""
    if part in MAY_BE_MISSING:
        pytest.skip(f"{reason} ({MAY_BE_MISSING[part]})")
    if os.environ.get("TURNWISE_REQUIRE_ALL") == "1":
        pytest.fail(f"TURNWISE_REQUIRE_ALL=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def optional_part() -> Callable[..., NoReturn]:
    """`skip_or_fail` as a fixture, for tests that do not import this file."""
    return skip_or_fail


@pytest.fixture(autouse=True)
def unknown_endpoints() -> None:
    """Forget what models behind endpoints refuse: another test's server may get the same port."""
    dialect_for.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def quick_sandbox() -> Iterator[None]:
    """Start the tool `python` without SymPy, whose import takes a second in every event loop that runs code.

    tests/sandbox tests the sandbox with all of its packages.
    """
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            from turnwise.sandbox import shared
            from turnwise.sandbox.host import Sandbox

            def start(limits: Any, *, packages: tuple[str, ...], **options: Any) -> Any:
                return Sandbox.start(limits, packages=tuple(name for name in packages if name != "sympy"), **options)

            patch.setattr(shared, "Sandbox", SimpleNamespace(start=start))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_disk_flushes() -> Iterator[None]:
    """Never wait for the disk: the files of a test need not survive a power cut, and a short run flushes 50 of them.

    tests/training/test_checkpoints.py tests that checkpoints and records are flushed.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_certificates() -> Iterator[None]:
    """Trust no authority: reading their certificates takes most of an HTTP client's start, and no test needs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_verify_locations", lambda context, *files, **options: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, also in runs without system.threads: small models are faster with it.

    With one per core, the threads of parallel workers wait for each other: a run takes six times the processor time.
    """
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnwise.run.training_run.default_threads", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Use a new cache for this test run, shared by its workers. The user's cache is not touched."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "turnwise-cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNWISE_CACHE", str(folder))
        yield folder
