"""Nodes of the Ray clusters of the tests."""

from pathlib import Path
from typing import Any

NODE = {
    "num_cpus": 2,
    "object_store_memory": 80_000_000,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,  # of the autoscaler
    "setup_worker_path": str(Path(__file__).with_name("ray_worker_for_tests.py")),
}


def restore_nodes(cluster: Any) -> None:
    """Add the nodes that other tests have killed: a cluster has two besides its head."""
    from turnwise.cluster.session import keep_sigterm

    with keep_sigterm():
        while len(cluster.worker_nodes) < 2:
            cluster.add_node(**NODE)
