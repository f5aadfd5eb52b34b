"""The gradient of a whole step, from groups to parameters, is that of plain loops over single tokens."""

from typing import Any

import pytest
import torch
from step_by_hand_for_tests import (
    Token,
    assert_same_gradients,
    clipped_loss,
    gradients_of,
    less_the_mean,
    plain_model,
    rewards_to_come,
    tokens_of,
)

from episodes_for_tests import group_of, turn_of
from learners_for_tests import estimate_of, gradients, learn, make_learner, random_groups, settings_of
from models_for_tests import random_model
from turnwise.core.trajectory import Group, Span
from turnwise.run.build_learner import update_settings
from turnwise.training.update import mini_batch_order

BARE = {"algo__kl_coef": 0.0, "algo__entropy_coef": 0.0}


def moved(config: Any) -> tuple[Any, Any]:
    """A learner whose policy has left its reference, and the plain model of its policy."""
    learner = make_learner(config, moved=0.02)
    return learner, plain_model(learner.model)


def log_ratio(token: Token) -> torch.Tensor:
    return token.logprob - token.sampler_logprob


@pytest.mark.parametrize("micro_tokens", [10**6, 30])
def test_gradient_of_policy_loss_entropy_and_kl(micro_tokens: int) -> None:
    config = settings_of(algo__advantage="dr_grpo", algo__kl_coef=0.3, algo__entropy_coef=0.2, algo__kl_estimator="k3")
    groups = random_groups()
    learner, policy = moved(config)
    tokens, reference = tokens_of(groups, policy), tokens_of(groups, random_model("llama", "eager"))
    advantage = less_the_mean(groups)
    losses = []
    for token, other in zip(tokens, reference, strict=True):
        x = token.logprob - other.logprob.detach()
        kl = (-x).exp() - 1 + x
        losses.append(clipped_loss(log_ratio(token).exp(), advantage(token)) - 0.2 * token.entropy + 0.3 * kl)
    by_hand = gradients_of(torch.stack(losses).mean(), policy)
    assert_same_gradients(gradients(learner, groups, config, micro_tokens=micro_tokens), by_hand)


def test_gradient_with_kl_in_the_reward() -> None:
    """Between the policy before the update and the reference, charged token by token; the loss has no KL of its own."""
    config = settings_of(
        algo__advantage="reinforce",
        algo__placement="turn",
        algo__kl_in="reward",
        algo__kl_estimator="k1",
        algo__kl_coef=0.3,
        algo__entropy_coef=0.0,
        algo__old_logprobs="learner",
    )
    groups = random_groups()
    learner, policy = moved(config)
    tokens, reference = tokens_of(groups, policy), tokens_of(groups, random_model("llama", "eager"))
    charged = [0.3 * (one.logprob - other.logprob).item() for one, other in zip(tokens, reference, strict=True)]
    losses = []
    for index, token in enumerate(tokens):
        later = [
            cost
            for other, cost in zip(tokens[index:], charged[index:], strict=True)
            if other.trajectory is token.trajectory
        ]
        losses.append(-(rewards_to_come(token) - sum(later)) * token.logprob)
    by_hand = gradients_of(torch.stack(losses).mean(), policy)
    assert_same_gradients(gradients(learner, groups, config), by_hand)


def test_gradient_with_an_off_policy_correction() -> None:
    config = settings_of(
        algo__advantage="dr_grpo",
        algo__old_logprobs="learner",
        algo__correction="truncated",
        algo__correction__level="token",
        algo__correction__bounds=(0.7, 1.3),
        **BARE,
    )
    groups = random_groups()
    learner, policy = moved(config)
    advantage = less_the_mean(groups)
    weights = [log_ratio(token).exp().item() for token in tokens_of(groups, policy)]
    assert min(weights) < 0.7 and max(weights) > 1.3
    losses = [
        -min(max(weight, 0.7), 1.3) * advantage(token) * token.logprob
        for token, weight in zip(tokens_of(groups, policy), weights, strict=True)
    ]
    by_hand = gradients_of(torch.stack(losses).mean(), policy)
    assert_same_gradients(gradients(learner, groups, config), by_hand)


def test_gradient_of_gspo_takes_one_ratio_per_context() -> None:
    config = settings_of(algo__advantage="dr_grpo", algo__loss="gspo", algo__loss__level="sequence", **BARE)
    groups = random_groups()
    learner, policy = moved(config)
    tokens, advantage = tokens_of(groups, policy), less_the_mean(groups)
    losses = []
    for token in tokens:
        own = [each for each in tokens if each.trajectory is token.trajectory and each.segment == token.segment]
        mean = sum(log_ratio(each).item() for each in own) / len(own)
        ratio = (mean + token.logprob - token.logprob.detach()).exp()
        losses.append(clipped_loss(ratio, advantage(token)))
    by_hand = gradients_of(torch.stack(losses).mean(), policy)
    assert_same_gradients(gradients(learner, groups, config), by_hand)


def thoughtful_groups() -> list[Group]:
    """Each turn thinks for two tokens and answers with two; the end of the turn is in neither span."""
    spans = (Span(name="think", start=0, end=2), Span(name="answer", start=2, end=4))

    def turn(first: int, reward: float, **others: Any) -> Any:
        logprobs = [-4.0 - 0.1 * number for number in range(5)]
        said = list(range(first, first + 5))
        return turn_of([3] * 9, said, reward=reward, spans=spans, logprobs=logprobs, **others)

    members = [[turn(10 * n, 0.5 * n, extends=False), turn(10 * n + 20, 1.0 - n)] for n in (1, 2, 3)]
    return [group_of(members, 0), group_of(members[::-1], 1)]


def test_gradients_follow_loss_tokens_and_advantage_tokens() -> None:
    config = settings_of(
        "trunk",
        algo__loss_tokens="answer",
        algo__advantage_tokens="sampled",
        critic__value_coef=0.3,
        critic__value_clip=100.0,
        algo__advantage__whiten=False,
        algo__advantage__gamma=1.0,
        algo__advantage__lam=1.0,
        **BARE,
    )
    groups, learner = thoughtful_groups(), make_learner(config)
    policy = plain_model(learner.model)
    tokens = tokens_of(groups, policy)
    answers = [token for token in tokens if token.place in (2, 3)]
    losses = [clipped_loss(log_ratio(token).exp(), rewards_to_come(token)) for token in answers]
    # A new critic says 0, so its error is the return; its trunk is still the policy's.
    head = sum(-rewards_to_come(token) * token.hidden.detach() for token in tokens) * 0.3 / len(tokens)
    by_hand = gradients_of(torch.stack(losses).mean(), policy)
    assert_same_gradients(gradients(learner, groups, config), by_hand | {"critic.head.weight": head[None]})


@pytest.mark.parametrize("micro_tokens", [10**6, 30])
def test_entropy_bonus_is_that_of_the_loss_tokens(micro_tokens: int) -> None:
    config = settings_of(algo__loss_tokens="answer", algo__entropy_coef=0.2, algo__kl_coef=0.0)
    groups = thoughtful_groups()
    learner, policy = moved(config)
    bonus = torch.stack([0.2 * token.entropy for token in tokens_of(groups, policy) if token.place in (2, 3)]).mean()
    bare = settings_of(algo__loss_tokens="answer", **BARE)
    without = gradients(make_learner(bare, moved=0.02), groups, bare)
    both = gradients(learner, groups, config, micro_tokens=micro_tokens)
    assert_same_gradients({name: both[name] - without[name] for name in both}, gradients_of(-bonus, policy))


def test_tokens_without_an_advantage_do_not_discount() -> None:
    """Two tokens of an answer in each turn: three of thinking and of the end between them are passed over."""
    config = settings_of(
        algo__advantage="reinforce",
        algo__placement="turn",
        algo__advantage_tokens="answer",
        algo__advantage__gamma=0.5,
        **BARE,
    )
    found = estimate_of(thoughtful_groups(), make_learner(config), config)
    assert found is not None
    for sample, advantages in zip(found.samples, found.advantages, strict=True):
        first, second = found.trajectories[sample.trajectory].turn_rewards
        last = [0.5 * second, second]
        earlier = [0.5 * (first + 0.5 * last[0]), first + 0.5 * last[0]]
        expected = torch.tensor([0.0, 0.0, *earlier, 0.0, 0.0, 0.0, *last, 0.0])
        torch.testing.assert_close(advantages[sample.mask], expected)


def test_gradient_with_a_critic_on_the_policys_trunk() -> None:
    """The value loss reaches the trunk; the policy loss does not reach the value head."""
    config = settings_of(
        "head",
        critic__value_coef=0.3,
        critic__value_clip=100.0,
        algo__advantage__whiten=False,
        algo__advantage__gamma=1.0,
        algo__advantage__lam=1.0,
        algo__placement="turn",
        **BARE,
    )
    groups = random_groups()
    learner, policy = moved(config)
    head = torch.nn.Linear(64, 1)
    head.load_state_dict(learner.critic.head.state_dict())
    losses = []
    for token in tokens_of(groups, policy):
        value, returns = head(token.hidden)[0], rewards_to_come(token)
        clipped = clipped_loss(log_ratio(token).exp(), returns - value.item())
        losses.append(clipped + 0.3 * 0.5 * (value - returns).square())
    by_hand = gradients_of(torch.stack(losses).mean(), policy)
    by_hand |= {f"critic.head.{name}": each.grad for name, each in head.named_parameters()}
    assert_same_gradients(gradients(learner, groups, config), by_hand)


def test_skip_idle_keeps_samples_with_any_advantage() -> None:
    config = settings_of(algo__advantage="reinforce", algo__placement="turn", **BARE)
    turns = [turn_of([3] * 9, [4, 5], extends=False, reward=1.0), turn_of([6, 7], [8, 9], reward=0.0)]
    groups = [group_of([turns, [turn_of([3] * 9, [10], extends=False, reward=0.0)]])]
    learner, policy = moved(config)
    tokens = tokens_of(groups, policy)
    assert [rewards_to_come(token) for token in tokens] == [1, 1, 0, 0, 0]
    losses = [clipped_loss(log_ratio(token).exp(), rewards_to_come(token)) for token in tokens]
    by_hand = gradients_of(torch.stack(losses).mean(), policy)
    assert update_settings(config.algo, config.critic, config.train, config.seed).skip_idle
    assert_same_gradients(gradients(learner, groups, config), by_hand)


def test_update_takes_one_step_per_mini_batch_and_reports_means() -> None:
    config = settings_of(algo__advantage="dr_grpo", train__mini_batch=2, train__learning_rate=1e-12, **BARE)
    groups = random_groups()
    learner, policy = moved(config)
    steps, take = list[dict[str, float]](), learner.step

    def counted(**settings: Any) -> dict[str, float]:
        steps.append(take(**settings))
        return steps[-1]

    learner.step = counted  # type: ignore[method-assign]
    metrics = learn(learner, groups, config, micro_tokens=1)
    tokens, advantage = tokens_of(groups, policy), less_the_mean(groups)
    assert len(steps) == 3
    losses = [clipped_loss(log_ratio(token).exp(), advantage(token)).item() for token in tokens]
    assert metrics["policy_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-3)
    assert metrics["entropy"] == pytest.approx(sum(token.entropy.item() for token in tokens) / len(tokens), rel=1e-3)
    members = [each for group in groups for each in group.trajectories]
    first = [
        members[index]
        for index in next(
            iter(
                mini_batch_order(
                    range(len(members)), update_settings(config.algo, config.critic, config.train, config.seed), 0
                )
            )
        )
    ]
    apart = [abs(log_ratio(token).item()) for token in tokens if any(token.trajectory is each for each in first)]
    assert metrics["mismatch"] == pytest.approx(sum(apart) / len(apart), rel=1e-3), "before anything was learnt"
