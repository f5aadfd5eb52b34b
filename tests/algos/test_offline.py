"""Methods for stored episodes against loops written from the papers."""

import math
import random
from dataclasses import replace

import pytest
import torch
from choices_for_tests import choose
from hypothesis import given
from hypothesis import strategies as st
from losses_for_tests import inputs

from turnwise.algos.advantage_types import AdvantageInputs
from turnwise.algos.loss_types import LossInputs, PairInputs
from turnwise.algos.losses import LOSSES
from turnwise.algos.offline import Clone, Dpo, Preference


def rows(returns: list[float], groups: list[int]) -> AdvantageInputs:
    """One trajectory of three sampled tokens per return, which is split over two of them."""
    rewards = torch.tensor([[value - 1.0, 0.0, 1.0, 99.0] for value in returns])
    mask = torch.tensor([[True, True, True, False]] * len(returns))
    return AdvantageInputs(
        mask=mask, token_rewards=rewards, group_ids=torch.tensor(groups), turn_ids=torch.zeros(mask.shape).long()
    )


def test_clone_gives_every_sampled_token_one() -> None:
    found = Clone().compute(rows([3.0, -2.0], [0, 0])).advantages
    assert found.tolist() == [[1.0, 1.0, 1.0, 0.0]] * 2


def test_preference_marks_the_best_and_the_worst() -> None:
    found = Preference().compute(rows([1, 3, 2, 5, 5, 0, 0, 3], [7, 7, 7, 2, 2, 9, 9, 9]))
    assert found.advantages[:, 0].tolist() == [-1, 1, 0, 0, 0, -1, 0, 1]
    assert found.advantages[:, 3].abs().sum() == 0


@given(
    st.lists(st.tuples(st.floats(-6, 6), st.floats(-4, 4)), min_size=1, max_size=8),
    st.floats(0.1, 4),
    st.floats(0.5, 50),
)
def test_awr_equals_the_weighted_likelihood_of_the_paper(
    tokens: list[tuple[float, float]], beta: float, largest: float
) -> None:
    batch = inputs([ratio for _, ratio in tokens], [advantage for advantage, _ in tokens])
    result = choose(LOSSES, "awr", beta=beta, max_weight=largest).compute(batch)
    for number, (advantage, _) in enumerate(tokens):
        weight = min(math.exp(advantage / beta), largest)
        expected = -weight * batch.policy_logprobs[number].item()
        assert result.token_loss[number].item() == pytest.approx(expected, rel=1e-9)
    gradient = torch.autograd.grad(result.token_loss.sum(), batch.policy_logprobs)[0]
    weights = [min(math.exp(advantage / beta), largest) for advantage, _ in tokens]
    torch.testing.assert_close(gradient, -torch.tensor(weights, dtype=torch.float64))


def dpo_by_hand(
    pairs: list[tuple[list[int], list[int]]], policy: torch.Tensor, reference: torch.Tensor, beta: float, alpha: float
) -> torch.Tensor:
    """Equation 7 of Rafailov et al. 2023 in a loop: `pairs` are the tokens of the chosen and the rejected answer.

    With the likelihood of the chosen answer per token as in equation 1 of Pang et al. 2024.
    """
    total = torch.zeros((), dtype=torch.float64)
    for chosen, rejected in pairs:
        margin = torch.zeros((), dtype=torch.float64)
        for token in chosen:
            margin = margin + policy[token] - reference[token]
        for token in rejected:
            margin = margin - (policy[token] - reference[token])
        total = total - torch.nn.functional.logsigmoid(beta * margin)
        for token in chosen:
            total = total - alpha * policy[token] / len(chosen)
    return total / len(pairs)


@pytest.mark.parametrize(("seed", "alpha"), [(0, 0.0), (1, 0.0), (2, 0.5), (3, 1.0), (4, 2.0)])
def test_dpo_has_the_gradient_of_the_papers_loss(seed: int, alpha: float) -> None:
    """Tokens in any order, micro-batches that split the pairs, and three trajectories of the step without a pair."""
    rng = random.Random(seed)
    count, beta = 3, 0.3
    trajectories = [(pair, sign) for pair in range(count) for sign in (1, -1) for _ in range(rng.randint(2, 5))]
    rng.shuffle(trajectories)
    policy = torch.tensor([-rng.random() * 3 for _ in trajectories], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-rng.random() * 3 for _ in trajectories], dtype=torch.float64)
    tokens = {key: [at for at, each in enumerate(trajectories) if each == key] for key in set(trajectories)}
    pairs = [(tokens[pair, 1], tokens[pair, -1]) for pair in range(count)]
    expected = torch.autograd.grad(dpo_by_hand(pairs, policy, reference, beta, alpha), policy)[0]

    loss = Dpo(beta=beta, sft_coef=alpha)
    advantages = torch.tensor([float(sign) for _, sign in trajectories], dtype=torch.float64)
    factors = loss.weigh(
        PairInputs(
            policy_logprobs=policy.detach(),
            ref_logprobs=reference,
            advantages=advantages,
            group_ids=torch.tensor([10 * pair for pair, _ in trajectories]),
            num_trajectories=2 * count + 3,
        )
    ).factors
    total = torch.zeros((), dtype=torch.float64)
    for part in torch.arange(len(trajectories)).split(3):
        batch = LossInputs(
            policy_logprobs=policy[part],
            old_logprobs=reference[part],
            sampler_logprobs=reference[part],
            advantages=advantages[part],
            segment_ids=torch.zeros(len(part)).long(),
            turn_ids=torch.zeros(len(part)).long(),
            factors=factors[part],
        )
        total = total + loss.compute(batch).token_loss.sum() / (2 * count + 3)  # seq-mean-token-sum
    torch.testing.assert_close(torch.autograd.grad(total, policy)[0], expected)


def test_dpo_metrics_are_means_over_pairs() -> None:
    """Two pairs with different numbers of tokens; neither a third member nor a group without a pair counts."""
    loss = Dpo(beta=0.5)
    # (pair, mark, log pi, log pi_ref)
    tokens = [(4, 1, -1.0, -2.0), (4, 1, -0.5, -1.5), (4, -1, -3.0, -2.0), (4, 0, -9.0, -1.0)]
    tokens += [(7, -1, -1.0, -4.0), (7, 1, -2.0, -1.0), (7, -1, -0.25, -1.25), (8, 0, -3.0, -1.0)]
    pairs, marks, policy, reference = torch.tensor(tokens, dtype=torch.float64).unbind(dim=1)
    given = PairInputs(
        policy_logprobs=policy, ref_logprobs=reference, advantages=marks, group_ids=pairs.long(), num_trajectories=6
    )
    found = loss.weigh(given).metrics
    chosen, rejected = [0.5 * 2.0, 0.5 * -1.0], [0.5 * -1.0, 0.5 * 4.0]
    margins = [better - worse for better, worse in zip(chosen, rejected, strict=True)]
    assert found == pytest.approx(
        {
            "dpo_reward_chosen": sum(chosen) / 2,
            "dpo_reward_rejected": sum(rejected) / 2,
            "dpo_margin": sum(margins) / 2,
            "dpo_accuracy": 0.5,
            "dpo_logprob_chosen": (-1.5 - 2.0) / 2,
            "dpo_logprob_rejected": (-3.0 - 1.25) / 2,
            "dpo_loss": sum(math.log(1 + math.exp(-margin)) for margin in margins) / 2,
        }
    )
    none = loss.weigh(replace(given, advantages=torch.zeros_like(marks)))
    assert none.metrics == {} and not none.factors.any()
    with pytest.raises(ValueError, match=r"needs LossInputs\.factors"):
        loss.compute(inputs([0.0, 0.0], [1.0, -1.0]))
