"""Process that adds trajectories to a replay buffer until it is killed, and prints the number of each before."""

import sys
from pathlib import Path

from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.core.trajectory import Status, Stop, Trajectory, Turn
from turnwise.record.trajectories import open_replay

CAPACITY = 32


def numbered(number: int) -> Trajectory:
    turns = tuple(
        Turn(
            context_ids=(number % 30000,) * 300,
            extends=at > 0,
            action_ids=(number % 1000, 5),
            action_logprobs=(-0.125, -float(number)),
            temperature=1.0,
            spans=(),
            message=assistant(""),
            stop=Stop.EOS,
            reward=0.0,
        )
        for at in range(3)
    )
    task = Task(env="test", seed=1)
    return Trajectory(
        task=task, member=number, attempt=0, turns=turns, status=Status.FAILED, turn_rewards=(0.0, 0.5, 1.0)
    )


def add_until_killed(folder: Path) -> None:
    replay = open_replay(folder, CAPACITY)
    for number in range(10**6):
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        replay.add(numbered(number), step=number)
        if number % 10 == 9:
            replay.prune(number)
