"""The contract of `Learner` over local learners with every critic, a sharded one, and learners that break it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learners_for_tests import check_learner_contract, make_learner, settings_of
from ranks_for_tests import Ranks, check_sharded_learner
from turnwise.core.learner import Scores
from turnwise.training.learner import LocalLearner


@pytest.mark.parametrize("critic", ["no critic", "trunk", "head"])
def test_local_learner_keeps_the_contract(critic: str, tmp_path: Path) -> None:
    config = settings_of(critic)
    check_learner_contract(lambda: make_learner(config, moved=0.01), config, tmp_path)


def test_sharded_learner_keeps_the_contract(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    try:
        ranks.run(2, check_sharded_learner, tmp_path / "state")
    finally:
        ranks.stop()


def train_too_early(learner: LocalLearner) -> None:
    forward_backward = learner.forward_backward

    def train(*batches: Any, **options: Any) -> Any:
        metrics = forward_backward(*batches, **options)
        learner.step()
        return metrics

    learner.forward_backward = train  # type: ignore[method-assign]


def score_everything(learner: LocalLearner) -> None:
    score = learner.score
    learner.score = lambda batches, needs: [  # type: ignore[method-assign]
        Scores(
            policy_logprobs=row.policy_logprobs,
            entropy=row.entropy,
            ref_logprobs=row.ref_logprobs,
            values=row.policy_logprobs,
        )
        for row in score(batches, needs)
    ]


def never_train(learner: LocalLearner) -> None:
    learner.step = lambda *, rate_scale=1.0: {}  # type: ignore[method-assign]


def forget_the_optimizer(learner: LocalLearner) -> None:
    learner.load_state = lambda folder, *, skipped_steps: None  # type: ignore[method-assign]


def diverge(learner: LocalLearner) -> None:
    learner.step = lambda *, rate_scale=1.0: {"grad_norm": float("nan")}  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("breaks", "rule"),
    [
        (train_too_early, "only step changes the weights"),
        (score_everything, "values is returned if it is requested"),
        (never_train, "step changes the weights"),
        (forget_the_optimizer, "a resumed learner takes the same step"),
        (diverge, "metrics of a step are finite"),
    ],
)
def test_check_learner_names_the_broken_rule(breaks: Callable[[LocalLearner], None], rule: str, tmp_path: Path) -> None:
    config = settings_of("no critic")

    def make() -> LocalLearner:
        learner = make_learner(config, moved=0.01)
        breaks(learner)
        return learner

    with pytest.raises(AssertionError, match=rule):
        check_learner_contract(make, config, tmp_path)
