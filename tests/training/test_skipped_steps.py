"""A run stops after three skipped optimizer steps in a row and names the cause."""

import math
import re

import pytest
import torch

from learners_for_tests import settings_of
from turnwise.core.errors import DivergedError
from turnwise.training.skipped_steps import SkipMonitor, find_cause


def test_single_skipped_steps_do_not_stop_a_run() -> None:
    monitor, bad, good = SkipMonitor(), {"grad_norm": math.nan}, {"grad_norm": 1.0, "critic_grad_norm": 0.5}
    for _ in range(5):
        for norms in (bad, {"critic_grad_norm": math.inf, "grad_norm": 1.0}, good):
            monitor.add(norms, 1, lambda: "")
    monitor.add({"grad_norm": 1.0, "critic_grad_norm": math.nan}, 7, lambda: "")
    monitor.add(bad, 8, lambda: "")
    with pytest.raises(DivergedError, match=r"^3 optimizer steps in a row .* in step 9: .*not finite\. Fix it\.$"):
        monitor.add(bad, 9, lambda: "Fix it.")


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        (("entropy", "policy_loss", "kl"), "model's own outputs are not finite"),
        (("policy_loss",), "algo.loss ppo returned NaN"),
        (("kl",), "KL to the reference .* algo.kl_coef"),
        (("value_loss",), "critic's loss .* critic.learning_rate"),
        ((), "The losses are finite, but not their gradients: check algo.loss ppo"),
    ],
)
def test_find_cause_names_the_first_metric_that_is_not_finite(broken: tuple[str, ...], cause: str) -> None:
    names = ("policy_loss", "entropy", "kl", "value_loss", "tokens")
    sums = {name: torch.tensor(math.nan if name in broken else 1.0) for name in names}
    assert re.search(cause, find_cause(sums, settings_of().algo))
