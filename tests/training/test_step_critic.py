"""A step with a critic: the value after the last token of a truncated episode."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from step_by_hand_for_tests import plain_model

from learners_for_tests import estimate_of, make_learner, random_groups, settings_of
from turnwise.core.learner import Needs
from turnwise.core.trajectory import Group, Status, Trajectory
from turnwise.data.samples import build_samples
from turnwise.training.scores import score_samples


def ids_of_last_context(trajectory: Trajectory) -> list[int]:
    *_, last = trajectory.segments()
    return [token for turn in last.turns for token in (*turn.context_ids, *turn.action_ids)]


def plain_trunk(learner: Any) -> Any:
    """The trunk under the critic's head, with transformers' own attention."""
    trunk = plain_model(learner.model).base_model
    if hasattr(learner.critic, "trunk"):
        trunk.load_state_dict(learner.critic.trunk.state_dict())
    return trunk


@pytest.mark.parametrize(
    ("truncated", "status", "bootstraps"),
    [
        ("bootstrap", Status.TRUNCATED_TIME, True),
        ("zero", Status.TRUNCATED_TIME, False),
        ("bootstrap", Status.TRUNCATED_LIMIT, True),
        ("zero", Status.TRUNCATED_LIMIT, True),
        ("bootstrap", Status.TRUNCATED_TURNS, False),
    ],
)
@pytest.mark.parametrize("kind", ["head", "trunk"])
def test_bootstrap_value_is_that_of_the_episodes_own_end(
    kind: str, truncated: str, status: Status, bootstraps: bool
) -> None:
    """With gamma and lambda 1, a return is the rewards to come and the value after the last token."""
    config = settings_of(
        kind,
        algo__truncated=truncated,
        algo__advantage__whiten=False,
        algo__advantage__gamma=1.0,
        algo__advantage__lam=1.0,
    )
    learner = make_learner(config, moved=0.05)
    groups = [
        replace(
            group,
            trajectories=tuple(
                replace(each, status=status if number else Status.FAILED)
                for number, each in enumerate(group.trajectories)
            ),
        )
        for group in random_groups(members=4)
    ]
    found = estimate_of(groups, learner, config)
    assert found is not None and found.returns is not None
    trunk, values = plain_trunk(learner), []
    for index, trajectory in enumerate(found.trajectories):
        hidden = trunk(torch.tensor([ids_of_last_context(trajectory)])).last_hidden_state[0, -1]
        value = float(learner.critic.head(hidden).detach())
        values.append(value)
        cut = bootstraps and trajectory.status is status
        for sample, returns in zip(found.samples, found.returns, strict=True):
            if sample.trajectory == index:
                turns = sample.turn_ids[sample.mask].tolist()
                future_rewards = [sum(trajectory.turn_rewards[turn:]) + cut * value for turn in turns]
                torch.testing.assert_close(returns[sample.mask], torch.tensor(future_rewards), atol=1e-4, rtol=1e-4)
    assert max(values) - min(values) > 1e-2, "the ends must differ for their order to show"


def test_estimate_without_critic_takes_rewards_of_imported_time_limits() -> None:
    config = settings_of(algo__advantage="grpo")
    learner, groups = make_learner(config), random_groups(members=4)
    cut = [
        replace(group, trajectories=tuple(replace(each, status=Status.TRUNCATED_LIMIT) for each in group.trajectories))
        for group in groups
    ]
    found, expected = (estimate_of(each, learner, config) for each in (cut, groups))
    assert found is not None and expected is not None
    for one, other in zip(found.advantages, expected.advantages, strict=True):
        torch.testing.assert_close(one, other)


def with_values(groups: list[Group], learner: Any, shift: float = 0.0) -> list[Group]:
    """The groups with the critic's values in their turns, as an engine returns them."""
    result = []
    for group in groups:
        samples = build_samples(group.trajectories)
        scores = score_samples(samples, learner, Needs(values=True), 10**6)["values"]
        values = {index: list[float]() for index in range(len(group.trajectories))}
        for sample, found in zip(samples, scores, strict=True):
            values[sample.trajectory] += (found + shift).tolist()
        trajectories = []
        for index, trajectory in enumerate(group.trajectories):
            left, turns = iter(values[index]), []
            for turn in trajectory.turns:
                turns.append(replace(turn, values=tuple(next(left) for _ in turn.action_ids)))
            trajectories.append(replace(trajectory, turns=tuple(turns)))
        result.append(replace(group, trajectories=tuple(trajectories)))
    return result


class CountingLearner:
    """A learner that counts how often it computes values."""

    def __init__(self, learner: Any) -> None:
        self._learner, self.scored = learner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def score(self, batches: Any, needs: Needs) -> Any:
        self.scored += needs.values
        return self._learner.score(batches, needs)


def test_estimate_takes_the_values_that_the_engine_computed() -> None:
    config = settings_of("head")
    learner = CountingLearner(make_learner(config, moved=0.05))
    groups = random_groups(members=4)
    scored = estimate_of(groups, learner, config)
    assert learner.scored == 1
    sampled, shifted = (estimate_of(with_values(groups, learner, shift), learner, config) for shift in (0.0, 1.0))
    assert learner.scored == 1 + 2 * len(groups), "counted: with_values alone"
    assert scored is not None and sampled is not None and shifted is not None
    for name in ("advantages", "returns", "old_values"):
        for one, other in zip(getattr(scored, name), getattr(sampled, name), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert scored.old_values is not None and shifted.old_values is not None
    for sample, one, other in zip(scored.samples, scored.old_values, shifted.old_values, strict=True):
        torch.testing.assert_close(one[sample.mask] + 1.0, other[sample.mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("missing", ["one turn's values", "the value after the last token"])
def test_estimate_scores_values_that_the_engine_lacks(missing: str) -> None:
    bootstrap = missing == "the value after the last token"
    config = settings_of("head", algo__truncated="bootstrap" if bootstrap else "zero")
    learner = CountingLearner(make_learner(config, moved=0.05))
    first, *others = with_values(random_groups(members=4), learner, shift=1.0)
    if not bootstrap:
        turns = first.trajectories[0].turns
        lacking = replace(first.trajectories[0], turns=(replace(turns[0], values=()), *turns[1:]))
        first = replace(first, trajectories=(lacking, *first.trajectories[1:]))
    before, expected = learner.scored, estimate_of(random_groups(members=4), learner, config)
    found = estimate_of([first, *others], learner, config)
    assert learner.scored == before + 2
    assert found is not None and expected is not None
    assert found.old_values is not None and expected.old_values is not None
    for one, other in zip(found.old_values, expected.old_values, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
