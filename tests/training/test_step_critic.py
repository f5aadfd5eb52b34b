"""What the critic adds to a step: the value after the last token of an episode that a limit cut."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from step_by_hand_for_tests import plain_model

from learners_for_tests import estimate_of, make_learner, random_groups, settings_of
from turnwise.core.trajectory import Status, Trajectory


def ids_of_last_context(trajectory: Trajectory) -> list[int]:
    *_, last = trajectory.segments()
    return [token for turn in last.turns for token in (*turn.context_ids, *turn.action_ids)]


def plain_trunk(learner: Any) -> Any:
    """The trunk under the critic's head, with transformers' own attention."""
    trunk = plain_model(learner.model).base_model
    if hasattr(learner.critic, "trunk"):
        trunk.load_state_dict(learner.critic.trunk.state_dict())
    return trunk


@pytest.mark.parametrize("micro_tokens", [10**6, 30])
@pytest.mark.parametrize("kind", ["head", "trunk"])
def test_bootstrap_value_is_that_of_the_episodes_own_end(kind: str, micro_tokens: int) -> None:
    """With gamma and lambda 1, a return is the rewards to come and the value after the last token."""
    config = settings_of(kind, algo__truncated="bootstrap", algo__whiten=False, algo__gamma=1.0, algo__lam=1.0)
    learner = make_learner(config, moved=0.05)
    groups = [
        replace(
            group,
            trajectories=tuple(
                replace(each, status=Status.TRUNCATED_TIME if number else Status.FAILED)
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
        cut = trajectory.status is Status.TRUNCATED_TIME
        for sample, returns in zip(found.samples, found.returns, strict=True):
            if sample.trajectory == index:
                turns = sample.turn_ids[sample.mask].tolist()
                to_come = [sum(trajectory.turn_rewards[turn:]) + cut * value for turn in turns]
                torch.testing.assert_close(returns[sample.mask], torch.tensor(to_come), atol=1e-4, rtol=1e-4)
    assert max(values) - min(values) > 1e-2, "the ends must differ for their order to show"
