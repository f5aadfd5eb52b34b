"""A real Ray cluster of three nodes on this machine, started once."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from slow_lake_for_tests import DRIVER, GATE

from ray_forks_for_tests import fork_ray_workers
from ray_nodes_for_tests import NODE

START_S = 300.0
"""Longest time for the nodes to join: on a busy machine they take longer than Ray's own limits."""
SYSTEM = {
    "enable_worker_prestart": False,
    "prestart_worker_first_driver": False,
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 5,
}
"""No idle processes are started, and a killed node is declared dead after seconds instead of a quarter of a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests with the cluster first: pytest-xdist gives these to one worker, so there is one cluster."""
    items.sort(key=lambda item: "ray_cluster" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def ray_cluster(optional_part: Callable[..., NoReturn]) -> Iterator[Any]:
    """Connect this process to the cluster. It is on the first node; tests may kill the others."""
    try:
        import ray
        from ray.cluster_utils import Cluster

        from turnwise.cluster.local_ray import retry_start
        from turnwise.cluster.session import keep_sigterm
    except ImportError:
        optional_part("ray is not installed")
    folder = tempfile.mkdtemp(prefix="tw", dir="/tmp")  # sockets need short paths
    with pytest.MonkeyPatch.context() as patch, fork_ray_workers(Path(folder)) as variables:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv(GATE, f"{folder}/gate")
        patch.setenv(DRIVER, str(os.getpid()))
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", folder)  # else the address goes to /tmp/ray, which may not exist
        patch.setenv("OMP_NUM_THREADS", "1")
        head = {**NODE, "temp_dir": folder, "_system_config": SYSTEM, "wait": False}
        with keep_sigterm():
            Path(folder, "ray").mkdir()
            cluster = retry_start(lambda: Cluster(initialize_head=True, head_node_args=head))
            for _ in range(2):
                retry_start(lambda: cluster.add_node(wait=False, **NODE))
            cluster.wait_for_nodes(timeout=START_S)
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
