"""Advantages and losses for stored trajectories: imitation, advantage-weighted regression, preferences.

Off-policy GRPO needs nothing here: it is `grpo` and `ppo` with a correction of `off_policy.py` from the stored
log-probabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from turnwise.algos.advantage_types import Advantage, AdvantageInputs, AdvantageResult, broadcast_to_tokens
from turnwise.algos.loss_types import Loss, LossInputs, LossResult, PairInputs, PairLoss, PairResult, loss_metrics
from turnwise.algos.stats import reduce_by_group, return_statistics
from turnwise.settings.needs import PAIRS, TOKEN_SUMS, Need
from turnwise.settings.section import NonNegative

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch


class Clone(Advantage, kind="clone"):
    """1 on every sampled token: with the loss `reinforce`, the log-likelihood of the data (behaviour cloning).

    Filtered behaviour cloning is the same on the episodes that `data.keep` leaves.
    """

    uses_rewards: ClassVar[bool] = False

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        return broadcast_to_tokens(torch.ones(len(inputs.mask)), inputs)


class Preference(Advantage, kind="preference"):
    """1 for the best member of a group, -1 for the worst, 0 for the others and where all are equal: a pair for `dpo`.

    Of members with equal returns the first counts. Stored data comes as groups of two with different returns.
    """

    needs_groups: ClassVar[bool] = True
    compares_pairs: ClassVar[bool] = True

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        centred = return_statistics(
            inputs.token_rewards, inputs.mask, inputs.group_ids
        ).centred  # 0 where all are equal
        groups = inputs.group_ids.unique(return_inverse=True)[1]
        best, worst = (_first_with_extreme(centred, groups, reduction) for reduction in ("amax", "amin"))
        marks = best.double() - worst.double()
        return broadcast_to_tokens(torch.where(centred.isnan(), centred, marks), inputs)


def _first_with_extreme(values: Tensor, groups: Tensor, reduction: str) -> Tensor:
    """Mark the first member of each group that has its largest or smallest value. [B] bool"""
    rows = torch.arange(len(values))
    candidates = values == reduce_by_group(values, groups, reduction)
    return rows == reduce_by_group(torch.where(candidates, rows, len(rows)), groups, "amin")


class Awr(Loss, kind="awr"):
    """-min(exp(A / beta), 20) log pi (advantage-weighted regression, Peng et al. 2019, algorithm 1).

    A weighted likelihood: nothing is pushed down, so the policy stays near the actions of the data. AWAC (Nair et al.
    2020) has the same actor, with A = Q - V of a critic that learns by bootstrapping.
    """

    adds_penalty: ClassVar[bool] = True
    beta: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the weights exp(advantage / beta): lower values imitate only the best actions."""

    max_weight: ClassVar[float] = 20.0

    def compute(self, inputs: LossInputs) -> LossResult:
        weights = (inputs.advantages / self.beta).exp().clamp(max=self.max_weight)
        metrics = loss_metrics(inputs, awr_weight=weights, awr_clipped=weights == self.max_weight)
        return LossResult(token_loss=-weights * inputs.policy_logprobs, metrics=metrics)


class Dpo(PairLoss, kind="dpo"):
    """Direct preference optimisation: -log sigmoid(beta (x_w - x_l)), mean over pairs (Rafailov et al. 2023).

    The gradient is that of -factor log pi, token by token, with the constant factors of `weigh`: a pair may be
    split over micro-batches.
    """

    beta: Annotated[float, Field(gt=0)] = 0.1
    """Strength of the constraint to the reference: lower values move further away from it."""
    sft_coef: NonNegative = 0.0
    """Coefficient of the likelihood of the preferred episode, per token (RPO); 0 is plain DPO."""

    def compute(self, inputs: LossInputs) -> LossResult:
        if inputs.factors is None:
            raise ValueError("This loss needs LossInputs.factors, from Loss.weigh over the whole optimizer step.")
        return LossResult(token_loss=-inputs.factors * inputs.policy_logprobs, metrics=loss_metrics(inputs))

    def needs(self) -> list[Need]:
        return [
            Need(PAIRS, "algo.loss dpo compares two episodes of a task"),
            Need(TOKEN_SUMS, "algo.loss dpo sums over the tokens of an episode"),
        ]

    def weigh(self, inputs: PairInputs) -> PairResult:
        """(N / P) (beta sigmoid(-beta (x_w - x_l)) A + alpha 1(A > 0) / |w|): how much a token lowers its pair's loss.

        P is the number of pairs: a group of equal returns has none, and members between best and worst belong to none.
        The aggregation seq-mean-token-sum divides by all N trajectories, so N / P makes it a mean over pairs.

        x is the sum over a trajectory's tokens of log pi - log pi_ref; A is 1 in the preferred one, w, and -1 in l.
        The first term is DPO's gradient (Rafailov et al. 2023, equation 7), over whole trajectories, all segments and
        sampled tokens alone, as in Rafailov et al. 2024 for multi-turn dialogue. The second, with alpha = sft_coef, is
        the likelihood of w per token (RPO: Pang et al. 2024, arXiv:2404.19733). The metrics are those of TRL.
        """
        is_chosen, is_rejected = inputs.advantages > 0, inputs.advantages < 0
        groups, pairs = inputs.group_ids.unique(return_inverse=True)

        def sums(values: Tensor, member: Tensor) -> Tensor:
            """Sum [M] values over the chosen or the rejected trajectory of each pair. [P]"""
            return torch.zeros(len(groups), dtype=torch.float64).index_add(0, pairs, torch.where(member, values, 0.0))

        policy_logprobs, moved = (
            inputs.policy_logprobs.double(),
            inputs.policy_logprobs.double() - inputs.ref_logprobs.double(),
        )
        chosen, rejected = self.beta * sums(moved, is_chosen), self.beta * sums(moved, is_rejected)
        margins = chosen - rejected
        metrics = {
            "dpo_loss": -torch.nn.functional.logsigmoid(margins),
            "dpo_accuracy": (margins > 0).double(),
            "dpo_margin": margins,
            "dpo_reward_chosen": chosen,
            "dpo_reward_rejected": rejected,
            "dpo_logprob_chosen": sums(policy_logprobs, is_chosen),
            "dpo_logprob_rejected": sums(policy_logprobs, is_rejected),
        }
        likelihood = self.sft_coef / sums(torch.ones_like(policy_logprobs), is_chosen).clamp(min=1)
        factors = (self.beta * (-margins).sigmoid())[pairs] * inputs.advantages + likelihood[pairs] * is_chosen
        is_pair = sums((is_chosen | is_rejected).double(), is_chosen | is_rejected) > 0
        scale = inputs.num_trajectories / max(1, int(is_pair.sum()))
        return PairResult(
            factors=(scale * factors).to(inputs.policy_logprobs.dtype),
            metrics={name: float(values[is_pair].mean()) for name, values in metrics.items() if is_pair.any()},
        )
