"""The critic of whole utterances against plain forward passes and loops written from the papers."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from episodes_for_tests import trajectory_of, turn_of
from models_for_tests import random_model
from turnwise.core.errors import DivergedError
from turnwise.core.trajectory import Status, Trajectory
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.critic import UtteranceCritic
from turnwise.training.estimators.utterance_critic import (
    Decisions,
    UtteranceCriticLearner,
    build_decisions,
    utterance_lengths,
)
from turnwise.training.optimizer import Optimizer, OptimizerSettings

SETTINGS = OptimizerSettings(learning_rate=1e-2, weight_decay=0.0, max_grad_norm=1e9)
GAMMA = 0.9


def make_critic(
    *, expectile: float | None = None, rate: float = 0.25, micro_tokens: int = 1 << 20, own_trunk: bool = True
) -> UtteranceCriticLearner:
    """Return a critic with random heads, whose target differs from it."""
    critic = UtteranceCritic(random_model("llama", ATTENTION), seed=5, own_trunk=own_trunk)
    optimizer = Optimizer(list(critic.parameters()), SETTINGS, lambda step: 1.0)
    learner = UtteranceCriticLearner(
        critic, optimizer, target_rate=rate, expectile=expectile, micro_tokens=micro_tokens
    )
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for module in (learner.critic, learner.target):
            for parameter in module.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return learner


def talks() -> list[Trajectory]:
    """Two turns in one context; three turns with a new context before the third; one turn."""
    return [
        trajectory_of([turn_of([3, 4, 5], [20, 21], extends=False, reward=0.5), turn_of([6, 7], [22], reward=1.0)]),
        trajectory_of(
            [
                turn_of([3, 4, 5], [23], extends=False, reward=-1.0),
                turn_of([], [24, 25], reward=0.25),  # nothing is observed in between
                turn_of([8, 9, 10, 11], [26, 27, 28], extends=False, reward=2.0),
            ],
            status=Status.TRUNCATED_TOKENS,
        ),
        trajectory_of([turn_of([12, 13], [29, 30], extends=False, reward=-0.5)]),
    ]


def states_and_actions(trajectory: Trajectory) -> list[tuple[list[int], list[int]]]:
    """Return the ids before each utterance, back to the start of its context, and its own."""
    found, state = [], list[int]()
    for turn in trajectory.turns:
        state = [*(state if turn.extends else []), *turn.context_ids]
        found.append((state, list(turn.action_ids)))
        state = [*state, *turn.action_ids]
    return found


def by_hand(critic: UtteranceCritic, state: Sequence[int], action: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return Q [2] and V [2] by a forward pass over these tokens alone, with Hugging Face's own attention."""
    plain = random_model("llama", "eager").base_model
    plain.load_state_dict(critic.trunk.state_dict())
    hidden = plain(input_ids=torch.tensor([[*state, *action]])).last_hidden_state[0]
    before, last = hidden[len(state) - 1], hidden[-1]
    return (
        torch.cat([head(last) for head in critic.q_heads]),
        torch.cat([head(before) for head in critic.v_heads]),
    )


def decisions(trajectories: Sequence[Trajectory], *, bootstrap: bool = False) -> Decisions:
    return build_decisions(trajectories, GAMMA, bootstrap=bootstrap)


@pytest.mark.parametrize("micro_tokens", [1, 8, 1000])
def test_estimate_values_reads_q_after_the_utterance_and_v_before_it(micro_tokens: int) -> None:
    learner = make_critic(micro_tokens=micro_tokens)
    expected = [by_hand(learner.critic, *each) for talk in talks() for each in states_and_actions(talk)]
    estimates = learner.estimate_values(decisions(talks()).samples)
    torch.testing.assert_close(estimates.q, torch.stack([q for q, _ in expected]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(estimates.v, torch.stack([v for _, v in expected]), rtol=1e-4, atol=1e-5)


def test_critic_starts_at_zero_and_its_two_heads_differ_inside() -> None:
    critic = UtteranceCritic(random_model("llama", ATTENTION), seed=5)
    learner = UtteranceCriticLearner(
        critic, Optimizer(list(critic.parameters()), SETTINGS, lambda step: 1.0), target_rate=1, expectile=None,
        micro_tokens=100,
    )  # fmt: skip
    estimates = learner.estimate_values(decisions(talks()).samples)
    assert (estimates.q == 0).all() and (estimates.v == 0).all()
    first, second = (head[0].weight for head in critic.q_heads)  # type: ignore[index]
    assert not torch.equal(first, second)


def test_decisions_end_with_their_trajectory() -> None:
    found = decisions(talks())
    assert found.rewards.tolist() == [0.5, 1.0, -1.0, 0.25, 2.0, -0.5]
    assert found.discounts.tolist() == pytest.approx([GAMMA, 0, GAMMA, GAMMA, 0, 0])
    assert found.has_target.all()
    returns = [0.5 + 0.9 * 1.0, 1.0, -1.0 + 0.9 * (0.25 + 0.9 * 2.0), 0.25 + 0.9 * 2.0, 2.0, -0.5]
    assert found.discounted_returns().tolist() == pytest.approx(returns)
    assert found.complete.all()
    cut = decisions(talks(), bootstrap=True)
    assert cut.has_target.tolist() == [True, True, True, True, False, True], "no target after an unknown next state"
    assert cut.complete.tolist() == [True, True, False, False, False, True]
    q_values = torch.tensor([9.0, 9.0, 9.0, 9.0, 3.0, 9.0])
    returns[2:5] = [-1.0 + 0.9 * (0.25 + 0.9 * 3.0), 0.25 + 0.9 * 3.0, 3.0]
    assert cut.discounted_returns(q_values).tolist() == pytest.approx(returns), "Q in place of what was not played"
    assert found.discounted_returns(q_values).tolist() == found.discounted_returns().tolist()
    first, second, third = talks()
    imported = decisions([first, replace(second, status=Status.TRUNCATED_LIMIT), third], bootstrap=False)
    assert imported.has_target.tolist() == cut.has_target.tolist(), "the data's own limit is not an end"
    assert imported.complete.tolist() == cut.complete.tolist()


def test_summary_is_a_decision_without_a_discount() -> None:
    summary = turn_of([3], [4], extends=False, info={"summary": True})
    found = decisions([trajectory_of([turn_of([5], [6], extends=False), summary, turn_of([7], [8], extends=False)])])
    assert found.discounts.tolist() == pytest.approx([GAMMA, 1.0, 0.0])


def losses_by_hand(
    learner: UtteranceCriticLearner, fresh: Sequence[tuple[list[int], list[int]]], expectile: float | None
) -> tuple[Tensor, Tensor]:
    """Return the losses of Q and V: one decision after the other, as the papers write them."""
    q_errors, v_errors = [], []

    def v_error(state: list[int], action: list[int]) -> Tensor:
        with torch.no_grad():
            target, _ = by_hand(learner.target, state, action)
        u = target - by_hand(learner.critic, state, action)[1]
        return (u**2 if expectile is None else (expectile - (u < 0).float()).abs() * u**2).sum()

    for talk in talks():
        steps = states_and_actions(talk)
        for index, (state, action) in enumerate(steps):
            following = torch.zeros(2)
            if index + 1 < len(steps):
                with torch.no_grad():
                    _, following = by_hand(learner.target, *steps[index + 1])
            target = talk.turn_rewards[index] + GAMMA * following
            q_errors.append(((by_hand(learner.critic, state, action)[0] - target) ** 2).sum())
            if not fresh:
                v_errors.append(v_error(state, action))
    v_errors += [v_error(*each) for each in fresh]
    return torch.stack(q_errors).mean(), torch.stack(v_errors).mean()


FRESH = [([3, 4, 5], [40]), ([3, 4, 5, 23], [41, 42])]
"""Other utterances at states of the talks,"""
STATES = [0, 3]
"""of these decisions."""


def fresh_samples() -> list[object]:
    return [
        build_decisions([trajectory_of([turn_of(state, action, extends=False)])], 1, bootstrap=False).samples[0]
        for state, action in FRESH
    ]


@pytest.mark.parametrize(("micro_tokens", "own_trunk"), [(1, True), (1000, True), (1000, False)])
@pytest.mark.parametrize(("fresh", "expectile"), [(FRESH, None), ([], 0.9)])
def test_update_follows_the_gradient_of_the_papers_losses(
    fresh: list[tuple[list[int], list[int]]],
    expectile: float | None,
    micro_tokens: int,
    own_trunk: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = make_critic(expectile=expectile, micro_tokens=micro_tokens, own_trunk=own_trunk)
    q_loss, v_loss = losses_by_hand(learner, fresh, expectile)
    heads = [*learner.critic.q_heads.parameters(), *learner.critic.v_heads.parameters()]
    expected = torch.autograd.grad(q_loss + v_loss, heads)
    found: list[Tensor] = []
    monkeypatch.setattr(
        learner.optimizer, "step", lambda step: (found.extend(each.grad.clone() for each in heads) or 0.0, True)
    )
    metrics = learner.update(decisions(talks()), fresh_samples() if fresh else [], STATES if fresh else [], step=0)  # type: ignore[arg-type]
    assert metrics["q_loss"] == pytest.approx(q_loss.item(), rel=1e-3)
    assert metrics["v_loss"] == pytest.approx(v_loss.item(), rel=1e-3)
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-5)


def test_v_learns_nothing_without_fresh_utterances() -> None:
    """Stored utterances are those of older policies, whose values V must not learn."""
    learner = make_critic()
    before = [each.clone() for each in learner.critic.v_heads.parameters()]
    metrics = learner.update(decisions(talks()), [], [], step=0)
    assert metrics["v_loss"] == 0 < metrics["q_loss"]
    assert all(torch.equal(old, new) for old, new in zip(before, learner.critic.v_heads.parameters(), strict=True))


def test_q_loss_is_a_mean_over_decisions_with_a_target() -> None:
    """The last turn of an episode that was cut short has no target, and counts neither above nor below the line."""
    learner = make_critic()
    played = decisions(talks(), bootstrap=True)
    target = learner.estimate_values(played.samples, by_target=True).v
    online = learner.estimate_values(played.samples).q
    errors = [
        (online[index] - played.rewards[index] - played.discounts[index] * target[min(index + 1, 5)]).square().sum()
        for index in (0, 1, 2, 3, 5)
    ]
    expected = float(torch.stack(errors).mean())
    assert learner.update(played, [], [], step=0)["q_loss"] == pytest.approx(expected, rel=1e-4)


def test_update_trains_the_trunk_and_never_the_target_by_gradient() -> None:
    learner = make_critic(rate=0.25)
    trunk = [each.clone() for each in learner.critic.trunk.parameters()]
    target = [each.clone() for each in learner.target.parameters()]
    learner.update(decisions(talks()), [], [], step=0)
    assert any(
        not torch.equal(before, now) for before, now in zip(trunk, learner.critic.trunk.parameters(), strict=True)
    )
    assert all(each.grad is None and not each.requires_grad for each in learner.target.parameters())
    for before, now, online in zip(target, learner.target.parameters(), learner.critic.parameters(), strict=True):
        torch.testing.assert_close(now, 0.75 * before + 0.25 * online)


def test_heads_on_the_policys_trunk_leave_the_policy_alone() -> None:
    learner = make_critic(own_trunk=False)
    policy = learner.critic.trunk
    before = [each.clone() for each in policy.parameters()]
    heads = [each.clone() for each in learner.critic.parameters()]
    learner.update(decisions(talks()), fresh_samples(), STATES, step=0)  # type: ignore[arg-type]
    assert all(torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True))
    assert all(each.grad is None and each.requires_grad for each in policy.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(heads, learner.critic.parameters(), strict=True))
    assert learner.target.trunk is policy, "the target has heads of its own alone"
    assert not any("trunk" in name for name in learner.tensors())


def test_heads_on_the_policys_trunk_follow_the_policy() -> None:
    learner = make_critic(own_trunk=False)
    before = learner.estimate_values(decisions(talks()).samples, by_target=True)
    with torch.no_grad():
        for parameter in learner.critic.trunk.parameters():
            parameter += 0.05
    after = learner.estimate_values(decisions(talks()).samples, by_target=True)
    expected = [by_hand(learner.target, *each) for talk in talks() for each in states_and_actions(talk)]
    assert not torch.allclose(before.q, after.q)
    torch.testing.assert_close(after.q, torch.stack([q for q, _ in expected]), rtol=1e-4, atol=1e-5)


def test_target_distance_is_relative_to_the_online_weights() -> None:
    learner = make_critic()
    with torch.no_grad():
        for average, online in zip(learner.averages, learner.critic.parameters(), strict=True):
            average.copy_(1.5 * online)
    assert learner.target_distance() == pytest.approx(0.5)


def test_target_of_bfloat16_averages_in_float32() -> None:
    """A step of 1/1000 is below bfloat16's resolution, but a thousand of them arrive."""
    critic = UtteranceCritic(random_model("llama", ATTENTION, torch.bfloat16), seed=5)
    optimizer = Optimizer(list(critic.parameters()), SETTINGS, lambda step: 1.0)
    learner = UtteranceCriticLearner(critic, optimizer, target_rate=1e-3, expectile=None, micro_tokens=100)
    weight, slow = next(critic.trunk.parameters()), next(learner.target.trunk.parameters())
    with torch.no_grad():
        weight.fill_(1.0)
        learner.averages[0].fill_(2.0)
    for _ in range(3000):
        learner.averages[0].lerp_(weight.float(), learner.target_rate)
    learner.move_target()
    assert slow.dtype == torch.bfloat16
    assert float(slow.float().mean()) == pytest.approx(1 + 0.999**3001, abs=0.01)


def freeze_embedding(learner: UtteranceCriticLearner) -> UtteranceCriticLearner:
    """Return the learner of a critic whose first parameter is frozen, as a vision tower is."""
    next(learner.critic.parameters()).requires_grad_(False)
    trained = [each for each in learner.critic.parameters() if each.requires_grad]
    optimizer = Optimizer(trained, SETTINGS, lambda step: 1.0)
    return UtteranceCriticLearner(
        learner.critic, optimizer, target_rate=0.25, expectile=None, micro_tokens=learner.micro_tokens
    )


def test_target_averages_only_what_is_trained() -> None:
    learner = freeze_embedding(make_critic())
    frozen, first = (next(each.parameters()) for each in (learner.target, learner.critic))
    kept = frozen.clone()
    with torch.no_grad():
        first += 1.0  # to see whether it is read
    learner.update(decisions(talks()), [], [], step=0)
    assert torch.equal(frozen, kept) and frozen._version == 0, "a frozen parameter is not written to"
    assert len(learner.averages) == len(list(learner.critic.parameters())) - 1
    assert learner.target_distance() > 0
    assert next(name for name in learner.tensors() if name.startswith("average.")) == "average.1"


def test_critic_with_frozen_parameters_is_restored_exactly() -> None:
    learner, other = freeze_embedding(make_critic()), freeze_embedding(make_critic())
    with torch.no_grad():
        for critic in (other.critic, other.target):
            next(critic.parameters()).add_(1.0)
    learner.update(decisions(talks()), [], [], step=0)
    other.load_tensors({name: value.clone() for name, value in learner.tensors().items()})
    for ours, theirs in zip(learner.target.parameters(), other.target.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("own_trunk", [True, False])
def test_critic_state_is_restored_exactly(own_trunk: bool) -> None:
    learner, other = make_critic(own_trunk=own_trunk), make_critic(own_trunk=own_trunk)
    for step in range(2):
        learner.update(decisions(talks()), [], [], step=step)
    saved = {name: value.clone() for name, value in learner.tensors().items()}
    other.load_tensors(saved)
    for each in (learner, other):
        each.update(decisions(talks()), [], [], step=2)
    left, right = learner.tensors(), other.tensors()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_critic_learns_values_over_turns() -> None:
    """The reward comes two turns after the action that decides; bootstrapping must carry it back."""
    good = trajectory_of([turn_of([3], [20], extends=False), turn_of([6], [22]), turn_of([7], [23], reward=1.0)])
    bad = trajectory_of([turn_of([3], [21], extends=False), turn_of([6], [22]), turn_of([8], [23], reward=0.0)])
    learner = make_critic(rate=0.5, expectile=0.5)
    played = decisions([good, bad])
    for step in range(50):
        learner.update(played, [], [], step=step)
    estimates = learner.estimate_values(played.samples)
    torch.testing.assert_close(estimates.q.mean(1), played.discounted_returns(), atol=0.25, rtol=0)


def test_utterance_lengths_follow_turns() -> None:
    samples = decisions(talks()).samples
    assert [utterance_lengths(each) for each in samples] == [[2, 1], [1, 2], [3], [2]]


def test_critic_learns_the_same_whatever_the_unit_of_rewards() -> None:
    """Rewards that are 10 times as large: values are, too. Without a unit, Adam would take equal steps."""
    found = []
    for factor in (1.0, 10.0):
        learner, played = make_critic(), decisions(talks())
        played = replace(played, rewards=factor * played.rewards)
        learner.fit_unit(played.discounted_returns())
        metrics = [learner.update(played, [], [], step=0) for _ in range(3)][-1]
        found.append((learner.estimate_values(played.samples), learner.std, metrics["q_loss"]))
    (small, small_std, small_loss), (large, large_std, large_loss) = found
    torch.testing.assert_close(large.q, 10 * small.q, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(large.v, 10 * small.v, rtol=1e-3, atol=1e-3)
    assert large_std == pytest.approx(10 * small_std) and large_loss == pytest.approx(small_loss, rel=1e-3)


def test_unit_is_that_of_the_first_returns_that_differ() -> None:
    learner = make_critic()
    samples, returns = decisions(talks()).samples, torch.tensor([1.0, 2.0, 6.0])
    bare = learner.estimate_values(samples), learner.estimate_values(samples, by_target=True)
    learner.fit_unit(torch.full((3,), 5.0))
    assert learner.std == 1
    learner.fit_unit(returns)
    learner.fit_unit(torch.tensor([100.0, 300.0]))
    std = math.sqrt((2**2 + 1**2 + 3**2) / 3)
    assert learner.std == pytest.approx(std)
    for before, now in zip(
        bare, (learner.estimate_values(samples), learner.estimate_values(samples, by_target=True)), strict=True
    ):
        torch.testing.assert_close(now.q, 3.0 + std * before.q)
        torch.testing.assert_close(now.v, 3.0 + std * before.v)
    restored = make_critic()
    restored.load_tensors({name: value.clone() for name, value in learner.tensors().items()})
    torch.testing.assert_close(
        restored.estimate_values(samples, by_target=True).v, learner.estimate_values(samples, by_target=True).v
    )


def test_critic_of_utterances_stops_after_three_skipped_steps() -> None:
    critic = make_critic()
    played = decisions([trajectory_of([turn_of([3, 4], [20], extends=False, reward=math.inf)])])
    for step in range(2):
        assert not math.isfinite(critic.update(played, [], [], step)["utterance_critic_grad_norm"])
    with pytest.raises(DivergedError, match=r"in step 3: .* critic of utterances: lower critic\.learning_rate"):
        critic.update(played, [], [], 2)
