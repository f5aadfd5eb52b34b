"""Driver that starts a Ray cluster of its own with one actor, prints a line and waits."""

import os
import sys
import time

import ray

from turnwise.cluster.session import open_session
from turnwise.config.resources import ClusterConfig


class Idle:
    def pid(self) -> int:
        return os.getpid()


if __name__ == "__main__":
    with open_session(ClusterConfig(engines=1), uses_gpus=False) as session:
        actor = session.launch(Idle, session.placement.engines[0])
        sys.stdout.write(f"actor {ray.get(actor.pid.remote())}\n")
        sys.stdout.flush()
        time.sleep(600)
