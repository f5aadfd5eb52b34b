"""What all tests share: a cache of their own, no network, and parts that may be missing on a person's machine."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anything imports huggingface_hub
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # as if activated
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: tests press Ctrl-C all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
settings.register_profile("turnwise", deadline=None, max_examples=100 * SOAK)  # a busy machine is no failure
settings.load_profile("turnwise")


MAY_BE_MISSING = {
    "textworld": "it brings spaCy and compiles an interpreter of adventures, minutes and 350 MB: make test-adapters",
    "npm": "make test installs it where node is, and npm's registry can be reached",
}
"""Parts that are skipped even where all must run: module -> why, and what installs it and runs its tests."""


def skip_or_fail(reason: str, part: str = "") -> NoReturn:
    """For a test whose optional part is missing: skipped on a person's machine, a failure where all must run."""
    if part in MAY_BE_MISSING:
        pytest.skip(f"{reason} ({MAY_BE_MISSING[part]})")
    if os.environ.get("TURNWISE_REQUIRE_ALL") == "1":
        pytest.fail(f"TURNWISE_REQUIRE_ALL=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def optional_part() -> Callable[..., NoReturn]:
    """`skip_or_fail` for test files, which need not import this one."""
    return skip_or_fail


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small models are faster so, and workers that run side by side do not fight for cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh cache for this run of the tests, one for all of its workers; a person's own is left alone."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "turnwise-cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNWISE_CACHE", str(folder))
        yield folder
