"""Ray's files and processes on this machine: a folder that the next start removes, and a guard that reports a loss."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import ray
from ray._private import worker as ray_worker

from turnwise.cluster.ray_guard import LOST
from turnwise.sandbox.scratch_folders import create_base, remove_abandoned_bases, remove_base

Started = TypeVar("Started")

FOLDER = "turnwise-ray-"
LONGEST = 20
"""Characters of the folder that Ray's folder is in: paths of its sockets have at most 107."""
STARTS = 4
"""Times that Ray's processes are started if they are slow."""
SLOW_START = "timed out during startup"
"""Part of Ray's error then."""
PRINTS_ERRORS = "print_to_stdstream"
"""Function with which a thread of Ray prints errors in the driver."""
TOKEN_NOTICES = "ray._private.authentication.authentication_token_setup"
"""Logger of Ray's notices about tokens."""
PROCESSES = {"raylet": "raylet", "gcs_server": "GCS"}
"""Ray's processes without which a driver cannot go on, and their names in messages."""


@contextmanager
def session_folder() -> Iterator[str]:
    """Create the folder of a cluster on this machine and remove it at the end. Removes those of killed drivers first.

    The folder is locked as long as this process lives, so that only those of dead ones are removed.
    """
    places = (os.environ.get("RAY_TMPDIR"), tempfile.gettempdir(), "/tmp")
    parent = next(place for place in places if place is not None and len(place) <= LONGEST)
    remove_abandoned_bases(FOLDER, parent)
    base, lock = create_base(FOLDER, parent)
    try:
        yield base
    finally:
        remove_base(base, lock)


def retry_start(start: Callable[[], Started]) -> Started:
    """Call a function that starts Ray's processes again if they took too long.

    Ray waits for 30 s, which no setting changes. On a busy machine they may need more, but less the second time.
    """
    for _ in range(STARTS - 1):
        before = _find_children()
        try:
            return start()
        except Exception as error:  # Ray raises a bare one
            if SLOW_START not in str(error):
                raise
        for pid in _find_children().keys() - before.keys():
            os.kill(pid, signal.SIGKILL)  # Ray would leave them until this process ends
    return start()


def _find_children() -> dict[int, str]:
    """Return the processes of Ray that this one has started, and which each is."""
    children = [folder for folder in Path("/proc").glob("[0-9]*") if _parent_of(folder) == os.getpid()]
    names = {int(folder.name): _read(folder / "comm").strip() for folder in children}
    return {pid: PROCESSES[name] for pid, name in names.items() if name in PROCESSES}


@contextmanager
def hide_token_notice() -> Iterator[None]:
    """Keep Ray from printing that the cluster it starts needs a token, which it creates and passes on by itself.

    Setting RAY_AUTH_MODE here would be too late for its libraries, which read it when they are imported.
    """
    logger = logging.getLogger(TOKEN_NOTICES)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def silence_raylet() -> Iterator[None]:
    """Keep Ray from printing errors of its raylet, such as its last log lines when it dies. The guard reports a loss.

    Ray has no setting for it: `log_to_driver` is about other lines.
    """
    before = getattr(ray_worker, PRINTS_ERRORS, _ignore)
    setattr(ray_worker, PRINTS_ERRORS, _ignore)
    try:
        yield
    finally:
        setattr(ray_worker, PRINTS_ERRORS, before)


def _ignore(*_: object, **__: object) -> None:
    """Print nothing."""


def find_targets(*, is_own: bool) -> dict[str, str]:
    """Return the raylet and the GCS that this process is connected to, as arguments of the guard.

    `is_own`: this process started the cluster, so they are its children. Others are known by their address.
    """
    if is_own:
        return {name: str(pid) for pid, name in _find_children().items()}
    context = ray.get_runtime_context()
    node = next(candidate for candidate in ray.nodes() if candidate["NodeID"] == context.get_node_id())
    return {"raylet": f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}", "GCS": context.gcs_address}


def _parent_of(folder: Path) -> int | None:
    """Return the parent of the process in a folder of /proc; None if it has ended."""
    state, parent, *_ = [*_read(folder / "stat").rpartition(")")[2].split(), "Z", "0"]
    return None if state == "Z" else int(parent)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # the process has ended
        return ""


@contextmanager
def guard_against_loss(targets: Mapping[str, str], advice: str) -> Iterator[None]:
    """End this process if Ray's raylet or GCS is lost, after one line with `advice`; without them, Ray's calls hang."""
    if not hasattr(os, "pidfd_open"):  # not Linux
        yield
        return
    program = Path(__file__).with_name("ray_guard.py")
    arguments = [str(os.getpid()), advice, *(f"{name}={target}" for name, target in targets.items())]
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", program, *arguments], start_new_session=True, stdin=subprocess.DEVNULL
    )
    thread = threading.Thread(target=_exit_if_lost, args=(guard,), daemon=True, name="ray guard")
    thread.start()
    try:
        yield
    finally:
        guard.kill()
        thread.join()


def _exit_if_lost(guard: subprocess.Popen[bytes]) -> None:
    if guard.wait() == LOST:
        os._exit(1)  # as Ray does; files are complete at any time
