from typing import Any

import pytest

from turnwise.report.progress import explain_idle_step

ROLLED = {"rollout/sampled_tokens": 40.0, "rollout/kept_groups": 4.0}


@pytest.mark.parametrize(
    ("row", "mend"),
    [
        ({"train/empty_steps": 1.0, "rollout/sampled_tokens": 0.0, "rollout/kept_groups": 0.0}, "raise rollout.max_to"),
        ({**ROLLED, "train/empty_steps": 1.0, "rollout/kept_groups": 0.0}, "another algo.filter"),
        ({**ROLLED, "train/empty_steps": 1.0}, "algo.truncated drop"),
        ({**ROLLED, "train/idle_steps": 1.0}, "raise rollout.group_size"),
        ({**ROLLED, "train/grad_norm": 0.0}, "algo.loss_tokens"),
    ],
)
def test_a_step_that_trained_nothing_says_what_to_change(row: dict[str, Any], mend: str) -> None:
    told = explain_idle_step(row)
    assert told is not None and mend in told


def test_a_step_that_trained_says_nothing() -> None:
    assert explain_idle_step({**ROLLED, "train/grad_norm": 1e-9}) is None
    assert explain_idle_step({**ROLLED, "train/critic_grad_norm": 0.5}) is None, "the critic's warm-up"
    assert explain_idle_step({**ROLLED, "train/grad_norm": None}) is None, (
        "a gradient that was not finite is told elsewhere"
    )
