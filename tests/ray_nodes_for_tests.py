"""Resources of a node in the Ray clusters of the tests."""

NODE = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}
