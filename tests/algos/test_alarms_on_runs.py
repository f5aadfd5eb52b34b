"""Alarms on recorded and simulated runs: healthy ones raise none, collapses are named."""

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from test_alarms import Rows, alarms_of, kinds

RECORDED = Path(__file__).parents[1] / "data" / "alarms"


def recorded(name: str) -> Rows:
    """Rows of a run's metrics, reduced to the keys that alarms read and to four digits."""
    rows: Rows = json.loads((RECORDED / f"{name}.json").read_text())
    return rows


@pytest.mark.parametrize("name", ["bandit_0", "bandit_1", "quiz_equals"])
def test_recorded_healthy_runs_raise_no_alarm(name: str) -> None:
    assert alarms_of(recorded(name)) == []


@pytest.mark.parametrize(("name", "kind"), [("echo_trap", "echo_trap"), ("quiz_hacked", "reward_hacked")])
def test_recorded_collapses_raise_an_alarm(name: str, kind: str) -> None:
    assert kind in kinds(alarms_of(recorded(name)))


def simulate(
    rng: random.Random, *, start: float, speed: float, ceiling: float, collapse: int | None = None, steps: int = 80
) -> Rows:
    """Groups of Bernoulli rewards on tasks of different difficulty, learnt at `speed` logits per step.

    A share of `1 - ceiling` of the tasks is unlearnt instead. From step `collapse` on, every task is either always or,
    mostly, never solved. The gradient norm follows the share of groups with spread, with log-normal noise.
    """
    groups, size, spread = rng.choice([8, 16, 32]), rng.choice([4, 8, 16]), rng.choice([0.3, 1.0, 2.0])
    tasks = [(rng.gauss(0, spread), rng.random() < ceiling) for _ in range(200)]
    rows = []
    for step in range(1, steps + 1):
        rewards, chances = [], []
        for _ in range(groups):
            ease, learns = rng.choice(tasks)
            logit = math.log(start / (1 - start)) + ease + (speed if learns else -speed) * step
            if collapse is not None and step > collapse:
                logit = 20.0 if ease < -spread else -20.0
            chances.append(1 / (1 + math.exp(-logit)))
            rewards.append([float(rng.random() < chances[-1]) for _ in range(size)])
        rows.append({"step": step, "rollout/groups": float(groups), **measure(rng, rewards, chances)})
    return rows


def measure(rng: random.Random, rewards: list[list[float]], chances: list[float]) -> dict[str, Any]:
    means = [sum(group) / len(group) for group in rewards]
    stds = [math.sqrt(mean * (1 - mean)) for mean in means]  # rewards are 0 or 1
    flat = sum(std == 0 for std in stds) / len(stds)
    success = statistics.fmean(means)
    return {
        "rollout/success": success,
        "rollout/reward": success,
        "rollout/reward_group_std": statistics.fmean(stds),
        "rollout/zero_std_groups": flat,
        "rollout/response_tokens": 20.0,
        "train/grad_norm": 0.5 * (0.02 + math.sqrt(1 - flat)) * math.exp(rng.gauss(0, 0.5)),
        "train/entropy": 0.05 + statistics.fmean(chance * (1 - chance) for chance in chances),
    }


@pytest.mark.parametrize("seed", range(40))
def test_simulated_runs_that_reach_their_ceiling_raise_no_alarm(seed: int) -> None:
    rng = random.Random(seed)
    start, speed = rng.choice([0.05, 0.2, 0.4, 0.6, 0.8]), rng.choice([0.05, 0.1, 0.2])
    assert alarms_of(simulate(rng, start=start, speed=speed, ceiling=rng.choice([0.88, 0.92, 0.95, 1.0]))) == []


@pytest.mark.parametrize("seed", range(20))
def test_simulated_collapses_are_echo_traps_within_ten_steps(seed: int) -> None:
    rng = random.Random(seed)
    start, speed, collapse = rng.choice([0.2, 0.4, 0.6]), rng.choice([0.0, 0.02, 0.05]), rng.choice([20, 40])
    raised = alarms_of(simulate(rng, start=start, speed=speed, ceiling=1.0, collapse=collapse))
    (first, *_) = [alarm.step for alarm in raised if alarm.kind == "echo_trap"]
    assert collapse < first <= collapse + 10


def test_gradient_spike_needs_a_norm_above_the_start_and_the_clip() -> None:
    """A batch with something left to learn looks as all did at the start; an unclipped gradient is not an accident."""

    def norms(*given: float) -> Rows:
        return [{"step": step, "train/grad_norm": norm} for step, norm in enumerate(given, 1)]

    learnt = [0.5] * 10 + [0.02] * 30
    assert alarms_of(norms(*learnt, 0.5)) == alarms_of(norms(*learnt, 4.0)) == []
    assert kinds(alarms_of(norms(*learnt, 6.0))) == ["gradient_spike"]
    assert alarms_of(norms(*[0.01] * 40, 0.9)) == []
    assert kinds(alarms_of(norms(*[0.01] * 40, 1.1))) == ["gradient_spike"]
    assert kinds(alarms_of(norms(*[3.0] * 40, 31.0))) == ["gradient_spike"]


def test_success_that_falls_from_its_height_is_not_excused() -> None:
    """0.8 is near the ceiling on the way up, and a fall after 1.0."""

    def rows(*success: float) -> Rows:
        spread = [0.4] * 20 + [0.01] * (len(success) - 20)
        pairs = enumerate(zip(success, spread, strict=True), 1)
        return [
            {"step": step, "rollout/groups": 256.0, "rollout/success": won, "rollout/reward_group_std": std}
            for step, (won, std) in pairs
        ]

    assert alarms_of(rows(*[0.3] * 15, *[0.8] * 45)) == []
    assert kinds(alarms_of(rows(*[0.3] * 10, *[1.0] * 20, *[0.8] * 30))) == ["echo_trap"]
