"""Resources of a node in the Ray clusters of the tests."""

from pathlib import Path

NODE = {
    "num_cpus": 2,
    "object_store_memory": 80_000_000,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,  # of the autoscaler
    "setup_worker_path": str(Path(__file__).with_name("ray_worker_for_tests.py")),
}
