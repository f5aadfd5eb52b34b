"""Training learns: within seconds, what the reward asks for and nothing tells."""

import random
from pathlib import Path

import pytest

import turnwise as tw
from turnwise.envs.text_env import Outcome


class TwoUps(tw.TextEnv):
    """Choose twice."""

    max_turns = 2
    action_names = ("Up", "Down")

    def reset(self, rng: random.Random) -> str:
        self.ups = 0
        return "Now."

    def step(self, action: str) -> Outcome:
        self.ups += action == "Up"
        return tw.won() if self.ups == 2 else tw.goes_on("Again.")


CRITIC = {"critic__kind": "head", "critic__learning_rate": 1e-3}


@pytest.mark.parametrize(("advantage", "critic"), [("grpo", {}), ("gae", CRITIC)])
def test_training_learns(tmp_path: Path, advantage: str, critic: dict[str, object]) -> None:
    run = tw.train(
        env=TwoUps,
        steps=12,
        model__warmup_steps=40,
        rollout__groups=4,
        rollout__group_size=8,
        rollout__max_new_tokens=10,
        algo__advantage=advantage,
        train__learning_rate=1e-3,
        train__mini_batch=16,
        eval__episodes=64,
        eval__temperature=1.0,
        record__folder=str(tmp_path),
        system__threads=1,
        **critic,
    )
    assert run.summary["success_before"] <= 0.6
    assert run.summary["success_after"] >= 0.8
