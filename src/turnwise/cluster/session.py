"""The Ray cluster of a run: connect to it or start it, place the run's actors, and explain its errors in one line."""

import os
import platform
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from turnwise.cluster.hang_watch import HangWatch
from turnwise.cluster.heartbeat import HEART
from turnwise.cluster.local_ray import (
    find_targets,
    guard_against_loss,
    hide_token_notice,
    retry_start,
    session_folder,
    silence_raylet,
)
from turnwise.cluster.placement import ActorSlot, Placement, check_capacity, plan_placement
from turnwise.config.resources import ClusterConfig
from turnwise.config.version import installed_version
from turnwise.core.errors import UserError
from turnwise.text.truncation import first_line

WAIT_S = 60.0
"""Seconds to wait until the cluster has room for all actors."""
CONNECT_S = 10.0
"""Seconds to wait for an answer of cluster.address."""
NICENESS = "RAY_worker_niceness"
"""Variable with the niceness of actors. With Ray's default, 15, other processes slow them more than a local run."""
SAME_VERSION = ("torch", "ray")
"""Packages that driver and actors need in the same version, besides turnwise."""
LOSSES = (RayActorError, OutOfMemoryError)
"""Errors of a call to an actor whose process died. Ray itself kills processes if a node has little memory left."""
EXIT_DETAIL = re.compile(r"Worker exit detail: ([^.\n]+)|is dead because ([^.\n]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSession:
    """A placement group on a cluster that this process is connected to."""

    placement: Placement
    group: PlacementGroup
    hangs: HangWatch
    """Watches all actors."""

    def launch(self, cls: type, slot: ActorSlot, name: str, *arguments: Any) -> Any:
        """Create a `BeatingActor` in its slot. It is never restarted by Ray: whoever uses it has to restore its state.

        `name`: in messages.
        """
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self.group, placement_group_bundle_index=slot.bundle
        )
        options = {"num_cpus": slot.cpus, "num_gpus": slot.gpus, "max_restarts": 0, "scheduling_strategy": strategy}
        actor = ray.remote(concurrency_groups={HEART: 1})(cls).options(**options).remote(*arguments)
        self.hangs.add(actor, name)
        return actor

    def kill(self, actor: Any) -> None:
        """End an actor that is not used any more."""
        self.hangs.forget(actor)
        ray.kill(actor)


@contextmanager
def open_session(
    settings: ClusterConfig, *, gpus_per_engine: int, advice: str = "", stacks: Path | None = None
) -> Iterator[ClusterSession]:
    """Connect to cluster.address, or start a cluster on this machine; leave or stop it at the end.

    `gpus_per_engine`: where the cluster has any; 0 uses none. `advice`: printed if Ray itself is lost. `stacks`: folder
    for those of hung processes.
    """
    with _connect(settings.address or os.environ.get("RAY_ADDRESS"), advice) as is_own:
        has_gpus = any(node.get("GPU", 0) for node in _nodes().values())
        placement = plan_placement(settings, gpus_per_engine=gpus_per_engine if has_gpus else 0)
        if is_own:
            check_capacity(settings, placement, _nodes())
        group = placement_group([*placement.bundles], strategy="PACK")
        hangs = HangWatch(stacks)
        try:
            _wait_until_placed(settings, placement, group)
            yield ClusterSession(placement=placement, group=group, hangs=hangs)
        finally:
            hangs.close()
            if ray.is_initialized():
                remove_placement_group(group)


@contextmanager
def _connect(address: str | None, advice: str) -> Iterator[bool]:
    """Yield whether the cluster was started here. A connection that the program has already is used and kept."""
    if ray.is_initialized():
        yield False
        return
    if address is not None:
        _check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "configure_logging": False}
    with ExitStack() as opened:
        if address is None:
            os.environ.setdefault(NICENESS, "0")
            folder = opened.enter_context(session_folder())
            opened.enter_context(hide_token_notice())
            options |= {"address": "local", "include_dashboard": False, "_temp_dir": folder}
        try:
            with keep_sigterm():
                retry_start(lambda: ray.init(**options))
        except Exception as error:  # also bare ones, if Ray's processes do not start in time
            raise _connection_error(address, error) from error
        opened.callback(ray.shutdown)
        opened.enter_context(silence_raylet())
        opened.enter_context(guard_against_loss(find_targets(is_own=address is None), advice))
        yield address is None


@contextmanager
def keep_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces: ours saves a checkpoint, Ray's exits at once."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _connection_error(address: str | None, error: Exception) -> UserError:
    if "Version mismatch" in str(error):  # Ray's message has a line for each version
        return UserError(f"{' '.join(str(error).split()).rstrip('.')}. Install the same versions.")
    if address is None:
        return UserError(f"Cannot start a Ray cluster on this machine: {describe_briefly(error)}.")
    return UserError(
        f"Cannot connect to the Ray cluster at {address}: {describe_briefly(error)}. Check cluster.address."
    )


def _check_address(address: str) -> None:
    """Raise UserError if nothing listens there: Ray itself would try for many minutes."""
    if address.startswith("ray://"):
        raise UserError(f"cluster.address {address}: start turnwise on a machine of the cluster, and give HOST:PORT.")
    host, colon, port = address.rpartition(":")
    if not colon:
        return  # such as "auto"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S):
            pass
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"Cannot reach a Ray cluster at {address} ({error}). Check cluster.address.") from error


def _nodes() -> dict[str, dict[str, float]]:
    """Return the resources of the nodes that are alive, by address."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}": node["Resources"] for node in alive}


def _wait_until_placed(settings: ClusterConfig, placement: Placement, group: PlacementGroup) -> None:
    try:
        ray.get(group.ready(), timeout=WAIT_S)
    except GetTimeoutError:
        check_capacity(settings, placement, _nodes())
        raise UserError(
            f"The cluster has room for the {len(placement.bundles)} actors, but others have used it for "
            f"{WAIT_S:g} s. Stop them, or start again when they have ended."
        ) from None


def describe_briefly(error: BaseException) -> str:
    """Return the first line of an error's message, without a final period."""
    return first_line(error).rstrip(".")


def describe_loss(error: BaseException) -> str:
    """Return why an actor was lost, in a few words."""
    if isinstance(error, OutOfMemoryError):
        return "its node has too little memory, so Ray killed it"
    match = EXIT_DETAIL.search(str(error))
    return (match[1] or match[2]).strip() if match is not None else describe_briefly(error)


def cause_of(error: RayTaskError) -> Exception:
    """Return the exception that the actor's method raised; Ray's own has a whole traceback as its message."""
    cause = error.cause
    return cause if isinstance(cause, Exception) else RuntimeError(str(cause))


def start_error(who: str, error: Exception) -> Exception:
    """Return the error of an actor that did not start, for users. `who`: "A learner rank"."""
    if isinstance(error, GetTimeoutError):
        return UserError(f"{who} did not start in time. Look at the cluster with `ray status`.")
    if isinstance(error, RayTaskError):
        cause = cause_of(error)
        if isinstance(cause, UserError):
            return cause
        return UserError(f"{who} did not start: {type(cause).__name__}: {describe_briefly(cause)}")
    return UserError(f"{who} died while it started ({describe_loss(error)}).")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """Node of an actor and its versions of packages."""

    host: str
    pid: int
    versions: Mapping[str, str]


def process_info() -> ProcessInfo:
    versions = {name: version(name).partition("+")[0] for name in SAME_VERSION}  # 2.13.0+cpu: builds may differ
    return ProcessInfo(host=platform.node(), pid=os.getpid(), versions={"turnwise": installed_version(), **versions})


def check_versions(info: ProcessInfo) -> None:
    """Raise UserError if the actor's machine has other versions than this one."""
    for name, own in process_info().versions.items():
        if info.versions[name] != own:
            raise UserError(
                f"{info.host} has {name} {info.versions[name]}, and this machine has {own}. Install the same version."
            )
