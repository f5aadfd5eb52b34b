"""Run ArCHer's critic and actor, and implicit Q-learning, against the golden records."""

from collections.abc import Callable

import torch
from choices_for_tests import choose
from golden_for_tests import Arrays, Record, arrays_of, close
from golden_losses_for_tests import gradient
from torch import Tensor

from turnwise.algos.archer import compute_advantages, compute_q_targets, utterance_value_loss
from turnwise.algos.loss_types import Loss, LossInputs
from turnwise.algos.losses import LOSSES, Reinforce, SeqMeanTokenSum, value_loss


def pair(arrays: Arrays, name: str) -> Tensor:
    """[D, 2]: both critics' column; `name` has their number as {}."""
    return torch.stack([arrays[name.format(number)] for number in (1, 2)], dim=1)


def actor_loss(chosen: Loss, logprobs: Tensor, advantages: Tensor, rows: Tensor) -> Tensor:
    """Sum over an utterance's tokens [M], mean over utterances: the aggregation of the preset `archer`."""
    inputs = LossInputs(
        policy_logprobs=logprobs,
        old_logprobs=logprobs.detach(),
        sampler_logprobs=logprobs.detach(),
        advantages=advantages,
        segment_ids=rows,
        turn_ids=torch.zeros_like(rows),
    )
    return (SeqMeanTokenSum().weights(rows, torch.float64) * chosen.compute(inputs).token_loss).sum()


def critic_losses(record: Record, expectile: float | None) -> tuple[Arrays, dict[str, Tensor]]:
    """Compare targets, the losses of both critics and their gradients; return the arrays and the losses by name."""
    arrays, expected = arrays_of(record), record["expected"]
    leaves = {name: arrays[name].requires_grad_() for name in ("q1", "q2", "v1", "v2")}
    discounts = record["params"]["gamma"] * (1 - arrays["done"])
    targets = compute_q_targets(arrays["reward"], discounts, pair(arrays, "target_v{}_next"))
    q_losses = (pair(arrays, "q{}") - targets).square().mean(dim=0)
    v_losses = utterance_value_loss(pair(arrays, "target_q{}_pi") - pair(arrays, "v{}"), expectile).mean(dim=0)
    losses = dict(zip(("q1_loss", "q2_loss", "v1_loss", "v2_loss"), (*q_losses, *v_losses), strict=True))
    for name, loss in losses.items():
        close(record, loss.detach(), expected[name], name)
    for name, leaf in leaves.items():
        close(record, gradient(torch.stack(list(losses.values())).sum(), leaf), expected["grad"][name], f"grad {name}")
    for number in (1, 2) if "q1_target" in expected else ():
        close(record, targets[:, number - 1], expected[f"q{number}_target"], f"q{number}_target")
    return arrays, losses


def advantages_of(arrays: Arrays) -> Tensor:
    return compute_advantages(pair(arrays, "q{}_pi"), pair(arrays, "v{}").detach())


def archer(record: Record) -> None:
    arrays, _ = critic_losses(record, None)
    advantages, rows = advantages_of(arrays), torch.arange(len(arrays["reward"]))
    close(record, advantages, record["expected"]["actor_adv"], "actor_adv")
    loss = actor_loss(Reinforce(), arrays["logp_pi"], advantages, rows)
    close(record, loss, record["expected"]["actor_loss"], "actor_loss")


def iql(record: Record) -> None:
    """The weights of awr are not clipped in the record."""
    given, expected = record["params"], record["expected"]
    arrays, losses = critic_losses(record, given["expectile"])
    close(record, torch.stack(list(losses.values())).sum().detach(), expected["loss"], "loss")
    rows, beta = torch.arange(len(arrays["reward"])), 1 / given["inv_temp"]
    loss = actor_loss(
        choose(LOSSES, "awr", beta=beta, max_weight=1e300), arrays["logp_pi"], advantages_of(arrays), rows
    )
    close(record, loss, expected["awr_loss"], "awr_loss")


def archer_baseline(record: Record) -> None:
    """The record's value loss is a mean over padding too, and without turnwise's factor of 0.5."""
    arrays, expected = arrays_of(record), record["expected"]
    mask, logp, values = arrays["mask"], arrays["logp"].requires_grad_(), arrays["values"].requires_grad_()
    targets = arrays["adv"][:, None].expand(mask.shape)
    pg_loss = actor_loss(Reinforce(), logp[mask], (targets - values.detach())[mask], mask.nonzero()[:, 0])
    token_loss, _ = value_loss(values, values.detach(), targets, clip=1e300)
    baseline_loss = 2 * token_loss[mask].sum() / mask.numel()
    close(record, pg_loss.detach(), expected["pg_loss"], "pg_loss")
    close(record, baseline_loss.detach(), expected["value_loss"], "value_loss")
    close(record, gradient(pg_loss, logp), expected["grad_logp"], "grad_logp")
    close(record, gradient(baseline_loss, values), expected["grad_values"], "grad_values")


ARCHER_RUNNERS: dict[str, Callable[[Record], None]] = {
    "archer": archer,
    "archer_baseline": archer_baseline,
    "iql": iql,
}
