"""Every algorithm by its name, in a real run: all that is advertised is wired up."""

import os
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from runs_for_tests import metrics, printed, quiet, small
from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.filters import FILTERS, SCORES
from turnwise.algos.losses import LOSSES
from turnwise.algos.normalisation import NORMALISATIONS
from turnwise.algos.off_policy import CORRECTIONS
from turnwise.run.train import train

STEPS = 2 if "TURNWISE_SOAK" in os.environ else 1
SHORT = {
    "train__steps": STEPS,
    "eval__every": 0,
    "eval__episodes": 1,
    "checkpoint__every": 5,
    "algo__old_logprobs": "learner",
    "env__params": {"max_turns": 3},
}


STORED = {"clone", "preference", "dpo"}
"""Advantages and losses for stored episodes: test_offline_run.py."""
PLAYED = [name for name in ADVANTAGES if name not in STORED]


def others(names: Any) -> list[str]:
    """One for each advantage, all of them in turn."""
    return list(islice(cycle(name for name in names if name not in STORED), len(PLAYED)))


COMBINATIONS = [
    dict(zip(("advantage", "loss", "correction", "filter", "filter__by", "normalise"), names, strict=True))
    for names in zip(
        PLAYED,
        others(LOSSES),
        others(CORRECTIONS),
        others(FILTERS),
        others(SCORES),
        others(NORMALISATIONS),
        strict=True,
    )
]


@pytest.mark.parametrize("names", COMBINATIONS, ids=lambda names: "-".join(names.values()))
def test_algorithm_trains_with_finite_metrics(names: dict[str, str], tmp_path: Path) -> None:
    settings = {f"algo__{name}": value for name, value in names.items()}
    if names["filter"] == "none":
        del settings["algo__filter__by"]
    values: dict[str, Any] = {
        "top_count": {"filter__count": 1},
        "absolute": {"filter__value": 0.1},
        **{name: {"filter__value": 0.5} for name in ("top_p", "top_p_softmax", "top_k", "min_p")},
    }.get(names["filter"], {})
    kl = {"kl_in": "reward", "kl_estimator": "k1"} if names["advantage"] in ("gae", "reinforce_pp") else {}
    raw = {"normalise": "identity"} if names["advantage"] == "remax" else {}
    extra = {f"algo__{name}": value for name, value in (values | kl | raw).items()}
    lake = {"env__kind": "frozen_lake", "rollout__max_tokens": 700}
    train(small(tmp_path, **(SHORT | settings | extra | lake)), console=quiet())
    rows = [row for row in metrics(tmp_path / "run") if "rollout/success" in row]
    assert len(rows) == STEPS
    trained = [row for row in rows if "train/grad_norm" in row]
    assert trained or all("train/empty_steps" in row or "train/idle_steps" in row for row in rows)
    assert all(row["train/skipped_steps"] == 0 for row in rows)


@pytest.mark.parametrize(
    "settings",
    [
        {"context": "window", "context__turns": 1},
        {"context": "turn"},
        {"rollout__retry_unsolved": 1},
        {"context": "summary", "context__every": 1, "context__summary": 8},
        {"algo__advantage": "bi_level_gae", "algo__advantage__gamma_turn": "adaptive"},
        {
            "algo__kl_target": 0.01,
            "algo__entropy_target": 5.0,
            "algo__loss_tokens": "answer",
            "algo__advantage_tokens": "answer",
            "diagnose__every": 1,
        },
    ],
    ids=str,
)
def test_settings_train_with_small_mismatch(settings: dict[str, Any], tmp_path: Path) -> None:
    console = quiet()
    train(small(tmp_path, **SHORT, **settings, env__kind="frozen_lake", rollout__max_tokens=900), console=console)
    rows = [row for row in metrics(tmp_path / "run") if "rollout/success" in row]
    assert len(rows) == STEPS and all("train/grad_norm" in row for row in rows), printed(console)
    if "algo__kl_target" in settings:
        assert rows[0]["train/kl_coef"] != 0.1
        assert rows[0]["train/entropy"] < 5.0 and rows[0]["train/entropy_coef"] > 0.001
    if "diagnose__every" in settings:
        assert "diagnostics/mutual_information" in rows[0] and "diagnostics/gradient_task_0" in rows[0]
    for row in rows:
        assert row["train/mismatch"] < 1e-4, "what was sampled is what is trained, in every context"


def test_reward_function_is_weighted_and_recorded(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def brief(trajectory):\n    return -trajectory.num_sampled / 100\n")
    mine = {"reward__functions": (f"{tmp_path}/mine.py:brief",), "reward__weights": (1.0, 0.5)}
    train(small(tmp_path, **SHORT, **mine), console=quiet())
    for row in metrics(tmp_path / "run"):
        if "rollout/success" in row:
            own = row["reward/env"] + row["reward/format"]
            assert row["reward/brief"] < 0
            assert row["rollout/reward"] == pytest.approx(own + 0.5 * row["reward/brief"])
