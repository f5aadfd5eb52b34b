"""Recorded values of a token are those of the learner's first pass over it."""

from typing import Any

import pytest
import torch

from learners_for_tests import CRITICS, estimate_of, learn, make_learner, random_groups, settings_of
from turnwise.core.learner import Needs
from turnwise.core.trajectory import Trajectory
from turnwise.run.build_learner import update_settings
from turnwise.training.scores import score_samples
from turnwise.training.step import TokenStatistics
from turnwise.training.step_record import trajectory_rows
from turnwise.training.update import update


def row_of(trajectory: Trajectory, rows: list[dict[str, Any]], groups: Any) -> dict[str, Any]:
    flat = [each for group in groups for each in group.trajectories]
    return rows[[id(each) for each in flat].index(id(trajectory))]


@pytest.mark.parametrize("critic", CRITICS)
def test_rows_have_logprob_and_entropy_of_every_token(critic: str) -> None:
    config = settings_of(critic, train__micro_tokens=40, train__epochs=2)
    learner, groups, seen = make_learner(config), random_groups(groups=3), TokenStatistics()
    estimated = estimate_of(groups, learner, config)
    assert estimated is not None
    scores = score_samples(estimated.samples, learner, Needs(policy_logprobs=True, entropy=True), 10_000)
    update(
        learner, estimated, update_settings(config.algo, config.critic, config.train, config.seed), 0, statistics=seen
    )
    rows: Any = trajectory_rows(1, groups, estimated, str, seen)
    checked = 0
    for index, sample in enumerate(estimated.samples):
        turns = row_of(estimated.trajectories[sample.trajectory], rows, groups)["turns"]
        own = [turns[number] for number in sorted(set(sample.turn_ids[sample.mask].tolist()))]
        for name, column in (("learner_logprobs", "policy_logprobs"), ("entropies", "entropy")):
            recorded = torch.tensor([value for turn in own for value in turn[name]])
            torch.testing.assert_close(recorded, scores[column][index], atol=1e-5, rtol=1e-5)
        assert [len(turn["loss_mask"]) for turn in own] == [len(turn["action_ids"]) for turn in own]
        checked += len(own)
    assert checked == sum(len(row["turns"]) for row in rows) > 9


def test_token_statistics_are_empty_for_skipped_samples() -> None:
    config = settings_of(algo__kl_coef=0.0, algo__entropy_coef=0.0)
    learner, groups, seen = make_learner(config), random_groups(), TokenStatistics()
    estimated = estimate_of(groups, learner, config)
    assert estimated is not None
    estimated.advantages[0].zero_()
    update(
        learner, estimated, update_settings(config.algo, config.critic, config.train, config.seed), 0, statistics=seen
    )
    assert seen.of(0) == {} and seen.of(1).keys() == {"learner_logprobs", "entropies"}


def test_token_statistics_do_not_change_the_update() -> None:
    config = settings_of("head")
    plain, recorded = make_learner(config), make_learner(config)
    metrics = learn(plain, random_groups(), config)
    estimated = estimate_of(random_groups(), recorded, config)
    assert estimated is not None
    assert (
        update(
            recorded,
            estimated,
            update_settings(config.algo, config.critic, config.train, config.seed),
            0,
            statistics=TokenStatistics(),
        ).metrics
        == metrics
    )
    for one, other in zip(plain.model.parameters(), recorded.model.parameters(), strict=True):
        assert torch.equal(one, other)
