"""turnwise against numbers that other systems' original functions gave for the same inputs, one case a record.

TURNWISE_GOLDEN names another file of the same schema; `pytest -rs` lists what is left out and why.
Where turnwise decides otherwise than a record: a group of one has advantage 0; a trajectory without a sampled token
enters no statistic, so groups (of group estimators) and batches (of losses that average over rows) with one are left
out; `seq-mean-token-sum-norm` is a mean over sequences, so a record's plain sum is ours times their number.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from turnwise.algos.advantages import ADVANTAGES, AdvantageInputs, AdvantageParams, AdvantageResult
from turnwise.algos.aggregation import AGGREGATIONS
from turnwise.algos.entropy import entropy_from_logits, logprobs_and_entropy
from turnwise.algos.kl import KL_ESTIMATORS
from turnwise.algos.losses import LOSSES, LossInputs, LossParams
from turnwise.algos.values import value_loss

DEFAULT = Path(__file__).parent.parent / "data" / "golden" / "public.json"
GOLDEN = json.loads(Path(os.environ.get("TURNWISE_GOLDEN") or DEFAULT).read_text())

NOT_OFFERED = "turnwise does not offer it"
STARPO = "comes with StarPO"
SKIPPED = {
    "gigpo": "the record counts a step row, turnwise an episode; comes with StarPO, on a hand-worked case",
    "archer": NOT_OFFERED,
    "archer_baseline": NOT_OFFERED,
    "mc_return": NOT_OFFERED,
    "iql": NOT_OFFERED,
    "clip_cov": NOT_OFFERED,
    "kl_cov": NOT_OFFERED,
    "areal_gspo": NOT_OFFERED,
    "mis_reject_mask": NOT_OFFERED,
    "mis_weights": NOT_OFFERED,
    "offpolicy_metrics": NOT_OFFERED,
    "noconcat_gae": NOT_OFFERED,
    "bilevel_gae": STARPO,
    "turnwise_gae": STARPO,
    "step_gae": STARPO,
    "turn_discounted_return": STARPO,
    "reinforce_pp_baseline": STARPO,
    "opo": STARPO,
    "remax": STARPO,
    "gpg_adv": STARPO,
    "passk": STARPO,
    "ppo_clip_tis": STARPO,
    "gspo": STARPO,
    "cispo": STARPO,
    "sapo": STARPO,
    "gpg_loss": STARPO,
    "geo_mean": STARPO,
    "decoupled_ppo": STARPO,
    "is_corrected_ppo": STARPO,
    "tis_weights": STARPO,
    "tis_clip_weights": STARPO,
    "icepop_weights": STARPO,
    "kl_in_reward": STARPO,
    "adaptive_kl": STARPO,
    "prime_norm": STARPO,
    "ragen_reward_norm": STARPO,
    "ragen_filter": STARPO,
    "starpo_s_filter": STARPO,
    "collapse_metrics": STARPO,
}
TRL_AGGREGATIONS = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
TRL_SKIPPED = {"cispo": STARPO, "sapo": STARPO, "vespo": NOT_OFFERED}
UNCLAMPED_K3 = "k3_unclamped"
"""The one expected value that is not compared: turnwise's k3 is the clamped one."""

Arrays = dict[str, Tensor]
Record = dict[str, Any]


def as_tensor(name: str, array: list[Any]) -> Tensor:
    """Floats are float64, 0/1 masks bool; ids of any type become integers of the same order."""
    if name.endswith("_ids"):
        number = {value: index for index, value in enumerate(sorted(set(array)))}
        return torch.tensor([number[value] for value in array])
    return torch.tensor(array, dtype={"mask": torch.bool, "turn_id": torch.int64}.get(name, torch.float64))


def arrays_of(record: Record) -> Arrays:
    """What the record names, overridden by what it brings."""
    found = dict(GOLDEN["batches"][record["batch"]]) if "batch" in record else {}
    found |= GOLDEN["steps"][record["steps"]] if "steps" in record else {}
    return {name: as_tensor(name, array) for name, array in (found | record.get("inputs", {})).items()}


def close(record: Record, got: Any, expected: Any, name: str) -> None:
    tolerance = GOLDEN["tolerances"][GOLDEN["algos"][record["algo"]]["tol"]]
    got, expected = (torch.as_tensor(side, dtype=torch.float64) for side in (got, expected))
    torch.testing.assert_close(got, expected, **tolerance, msg=lambda text: f"{record['id']} {name}: {text}")


def close_all(record: Record, got: dict[str, Any]) -> None:
    """Every expected value must be among those computed: a key that is not known here is an error."""
    for name, expected in record["expected"].items():
        close(record, got[name], expected, name)


def aggregate(token_loss: Tensor, mask: Tensor, mode: str, constant_length: float) -> Tensor:
    """[B, T] -> a number, as training does it: weights a token, then a sum; a row is a sequence."""
    sequences = mask.nonzero()[:, 0]
    weights = AGGREGATIONS[mode](sequences, constant_length, torch.float64)
    return (weights * token_loss[mask]).sum()


def as_record(mode: str, mask: Tensor) -> float:
    """What turns our aggregate into the record's: theirs of this mode has no mean over sequences."""
    return mask.any(dim=1).sum().item() if mode == "seq-mean-token-sum-norm" else 1.0


def aggregates(token_loss: Tensor, mask: Tensor, modes: Any) -> dict[str, Tensor]:
    length = mask.shape[1]
    return {mode: aggregate(token_loss, mask, mode, length) * as_record(mode, mask) for mode in modes}


def close_aggregates(record: Record, token_loss: Tensor, mask: Tensor, expected: dict[str, float]) -> None:
    for mode, got in aggregates(token_loss, mask, expected).items():
        close(record, got.detach(), expected[mode], mode)


def gradient(loss: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(loss, leaf, retain_graph=True)[0]


def advantage(name: str, arrays: Arrays, params: AdvantageParams) -> AdvantageResult:
    inputs = AdvantageInputs(
        mask=arrays["mask"],
        token_rewards=arrays["token_rewards"],
        group_ids=arrays.get("group_ids", torch.zeros(arrays["mask"].shape[0], dtype=torch.int64)),
        turn_ids=arrays.get("turn_id", torch.zeros_like(arrays["mask"], dtype=torch.int64)),
        values=arrays.get("values") if ADVANTAGES[name].needs_critic else None,
    )
    return ADVANTAGES[name].compute(inputs, params)


def run_gae(record: Record, arrays: Arrays) -> dict[str, Tensor]:
    given = {"gamma": record["params"]["gamma"], "lam": record["params"]["lam"]}
    raw = advantage("gae", arrays, AdvantageParams(**given, whiten=False))
    whitened = advantage("gae", arrays, AdvantageParams(**given, whiten=True))
    assert raw.returns is not None and whitened.returns is not None
    assert torch.equal(raw.returns, whitened.returns)
    return {"adv_raw": raw.advantages, "adv_whitened": whitened.advantages, "returns": raw.returns}


def token_gae(record: Record) -> None:
    close_all(record, run_gae(record, arrays_of(record)))


def reinforce_pp(record: Record) -> None:
    arrays, gamma = arrays_of(record), record["params"]["gamma"]
    silent_critic = arrays | {"values": torch.zeros_like(arrays["token_rewards"])}
    returns = advantage("gae", silent_critic, AdvantageParams(gamma=gamma)).returns
    assert returns is not None
    advantages = advantage("reinforce_pp", arrays, AdvantageParams(gamma=gamma)).advantages
    close_all(record, {"returns": returns, "adv": advantages})


def run_group(name: str, record: Record, arrays: Arrays) -> tuple[Tensor, Tensor]:
    """The advantage of each row, and the rows to compare; asserts turnwise's own rules for the others."""
    params = AdvantageParams(epsilon=record.get("params", {}).get("eps", 1e-6))
    advantages, mask = advantage(name, arrays, params).advantages, arrays["mask"]
    of_row = advantages.gather(1, mask.long().argmax(dim=1, keepdim=True))
    assert torch.equal(advantages, torch.where(mask, of_row, 0.0)), "the same on all of a row's tokens, 0 elsewhere"
    sampled = mask.any(dim=1)
    same_group = arrays["group_ids"][:, None] == arrays["group_ids"]
    alone = (same_group & sampled).sum(dim=1) < 2
    assert (of_row[alone | ~sampled] == 0).all()
    return of_row[:, 0], ~alone & ~(same_group & ~sampled).any(dim=1)


def group_estimator(name: str) -> Callable[[Record], None]:
    def run(record: Record) -> None:
        got, compared = run_group(name, record, arrays_of(record))
        for key, expected in record["expected"].items():
            close(record, got[compared], torch.tensor(expected, dtype=torch.float64)[compared], key)

    return run


def join_steps(steps: Arrays) -> tuple[Arrays, Tensor, Tensor]:
    """Step rows [N, T] as trajectories, steps side by side in order; and each row's trajectory and first column."""
    width = steps["mask"].shape[1]
    ids, trajectory = steps["traj_ids"].unique(return_inverse=True)
    earlier = (trajectory[:, None] == trajectory) & (steps["step_ids"][:, None] > steps["step_ids"])
    column = earlier.sum(dim=1) * width
    joined: Arrays = {"group_ids": torch.zeros(len(ids), dtype=torch.int64)}
    joined["group_ids"][trajectory] = steps["group_ids"]
    for name in ("mask", "token_rewards", "values"):
        joined[name] = steps[name].new_zeros(len(ids), int(column.max()) + width)
        joined[name][trajectory[:, None], column[:, None] + torch.arange(width)] = steps[name]
    return joined, trajectory, column


def traj_grpo(record: Record) -> None:
    joined, trajectory, _ = join_steps(arrays_of(record))
    got, compared = run_group("grpo" if record["params"]["norm_by_std"] else "dr_grpo", record, joined)
    rows = compared[trajectory]
    expected = torch.tensor(record["expected"]["row_adv"], dtype=torch.float64)
    close(record, got[trajectory][rows], expected[rows], "row_adv")


def step_token_gae(record: Record) -> None:
    steps = arrays_of(record)
    joined, trajectory, column = join_steps(steps)
    cells = (trajectory[:, None], column[:, None] + torch.arange(steps["mask"].shape[1]))
    close_all(record, {name: matrix[cells] for name, matrix in run_gae(record, joined).items()})


def ppo_tokens(arrays: Arrays, advantages: Tensor, params: LossParams) -> tuple[Tensor, dict[str, Tensor]]:
    """Token losses and metrics, computed on the flat sampled tokens and put back into [B, T]."""
    mask = arrays["mask"]
    inputs = LossInputs(
        logprobs=arrays["new_logp"][mask], old_logprobs=arrays["old_logp"][mask], advantages=advantages[mask]
    )
    result = LOSSES["ppo"](inputs, params)
    token_loss = torch.zeros_like(arrays["new_logp"]).masked_scatter(mask, result.token_loss)
    return token_loss, {name: values.mean() for name, values in result.metrics.items()}


def given_advantages(arrays: Arrays, name: str) -> Tensor:
    given = arrays[name]
    return given if given.dim() == 2 else given[:, None].expand(arrays["mask"].shape)


def ppo_clip(record: Record) -> None:
    arrays, given, expected = arrays_of(record), record["params"], record["expected"]
    mask, new_logp = arrays["mask"], arrays["new_logp"].requires_grad_()
    params = LossParams(clip_low=given["clip_low"], clip_high=given["clip_high"], dual_clip=given.get("clip_c", 3.0))
    token_loss, metrics = ppo_tokens(arrays, given_advantages(arrays, given["advantages"]), params)
    mode = expected.get("grad_mode", "token-mean")
    got = {
        "token_loss": token_loss.detach(),
        "grad_new_logp": gradient(aggregates(token_loss, mask, [mode])[mode], new_logp),
        "pg_clipfrac": metrics["clip_fraction"],
        "pg_clipfrac_lower": metrics["clip_fraction_low"],
        "ppo_kl": metrics["approx_kl"],
    }
    close_aggregates(record, token_loss.detach(), mask, expected["loss"])
    for name in expected.keys() - {"loss", "grad_mode"}:
        close(record, got[name], expected[name], name)


def trl_loss(record: Record) -> None:
    """The token-level members of the clipped family, with the KL to the reference as a loss."""
    arrays, given = arrays_of(record), record["params"]
    mask, new_logp = arrays["mask"], arrays["new_logp"].requires_grad_()
    params = LossParams(clip_low=given["clip_low"], clip_high=given["clip_high"], dual_clip=given.get("delta"))
    token_loss, _ = ppo_tokens(arrays, given_advantages(arrays, given.get("advantages", "adv_seq")), params)
    token_loss = token_loss + given.get("beta", 0.0) * KL_ESTIMATORS["k3"](new_logp, arrays["ref_logp"])
    mode = TRL_AGGREGATIONS[given["loss_type"]]
    loss = aggregate(token_loss, mask, mode, given.get("max_completion_length", mask.shape[1]))
    close_all(record, {"loss": loss.detach(), "grad_new_logp": gradient(loss, new_logp)})


def kl(record: Record) -> None:
    arrays = arrays_of(record)
    new_logp = arrays["new_logp"].requires_grad_()
    estimate = KL_ESTIMATORS[record["params"]["type"]](new_logp, arrays["ref_logp"])
    masked = torch.where(arrays["mask"], estimate, 0.0)
    close_all(record, {"kl": masked.detach(), "grad_new_logp": gradient(masked.sum(), new_logp)})


def kl_extreme(record: Record) -> None:
    arrays, expected = arrays_of(record), record["expected"]
    for name in expected.keys() - {UNCLAMPED_K3}:
        close(record, KL_ESTIMATORS[name](arrays["new_logp"], arrays["ref_logp"]), expected[name], name)


def clipped_value_loss(record: Record) -> None:
    arrays, expected = arrays_of(record), record["expected"]
    mask, vpreds = arrays["mask"], arrays["vpreds"].requires_grad_()
    token_loss, clipped = value_loss(vpreds, arrays["values"], arrays["value_targets"], record["params"]["clip"])
    close_aggregates(record, token_loss.detach(), mask, expected["loss"])
    got = {
        "grad_vpreds": gradient(aggregate(token_loss, mask, "token-mean", 1), vpreds),
        "clipfrac": clipped[mask].mean(),
    }
    for name in expected.keys() - {"loss"}:
        close(record, got[name], expected[name], name)


def entropy(record: Record) -> None:
    """Twice: by the definition, and by the function that training uses."""
    arrays, expected = arrays_of(record), record["expected"]
    mask, logits = arrays["mask"], arrays["logits"].requires_grad_()
    flat = logits.flatten(0, 1)
    _, trained = logprobs_and_entropy(flat, torch.zeros(len(flat), dtype=torch.int64), torch.ones(len(flat)))
    for token_entropy in (entropy_from_logits(logits), trained.view(mask.shape)):
        close_aggregates(record, token_entropy.detach(), mask, expected["agg"])
        got = {
            "token_entropy": token_entropy.detach(),
            "grad_logits_token_mean": gradient(aggregate(token_entropy, mask, "token-mean", 1), logits),
        }
        for name in expected.keys() - {"agg"}:
            close(record, got[name], expected[name], name)


def loss_agg(record: Record) -> None:
    """A record may describe one rank of several. Our weights are of the whole step: only its counts are rescaled."""
    arrays, given = arrays_of(record), record["params"]
    mask = arrays["mask"]
    tokens, rows = mask.sum().item(), mask.any(dim=1).sum().item()
    ranks, length = given.get("dp_size", 1), given.get("loss_scale_factor") or mask.shape[1]
    share = {
        "token-mean": ranks * tokens / (given.get("batch_num_tokens") or tokens),
        "seq-mean-token-sum": ranks * rows / (given.get("global_batch_size") or rows),
        "seq-mean-token-mean": ranks * rows / (given.get("global_batch_size") or rows),
        "seq-mean-token-sum-norm": as_record("seq-mean-token-sum-norm", mask),
    }
    for mode, expected in record["expected"].items():
        got = aggregate(arrays[given["loss_matrix"]], mask, mode, length) * share[mode]
        close(record, got, expected, mode)


RUNNERS: dict[str, Callable[[Record], None]] = {
    "token_gae": token_gae,
    "step_token_gae": step_token_gae,
    "grpo": group_estimator("grpo"),
    "dr_grpo_adv": group_estimator("dr_grpo"),
    "rloo": group_estimator("rloo"),
    "reinforce_pp": reinforce_pp,
    "traj_grpo": traj_grpo,
    "ppo_clip": ppo_clip,
    "trl_loss": trl_loss,
    "kl": kl,
    "kl_extreme": kl_extreme,
    "value_loss": clipped_value_loss,
    "entropy": entropy,
    "loss_agg": loss_agg,
}


def reason_to_skip(record: Record) -> str | None:
    if record["algo"] != "trl_loss":
        return SKIPPED.get(record["algo"])
    if record["params"].get("level", "token") != "token":
        return STARPO
    if record["params"]["loss_type"] in TRL_SKIPPED:
        return TRL_SKIPPED[record["params"]["loss_type"]]
    if not arrays_of(record)["mask"].any(dim=1).all():
        return "the record averages over rows without a sampled token too, turnwise never does"
    return None


def unknown_algorithms(records: list[Record]) -> set[str]:
    return {record["algo"] for record in records} - RUNNERS.keys() - SKIPPED.keys()


def case(record: Record) -> Any:
    reason = reason_to_skip(record)
    marks = [pytest.mark.skip(reason=f"golden {record['algo']}: {reason}")] if reason else []
    return pytest.param(record, id=record["id"], marks=marks)


@pytest.mark.parametrize("record", [case(record) for record in GOLDEN["records"]])
def test_record(record: Record) -> None:
    assert record["algo"] in RUNNERS, f"unknown algorithm {record['algo']}: add it to RUNNERS or SKIPPED"
    RUNNERS[record["algo"]](record)


def test_every_algorithm_of_the_file_is_run_or_listed_as_skipped() -> None:
    assert GOLDEN["schema"] == 1
    assert unknown_algorithms(GOLDEN["records"]) == set()
    assert not RUNNERS.keys() & SKIPPED.keys()


def test_an_algorithm_that_nobody_knows_is_found() -> None:
    assert unknown_algorithms([{"algo": "grpo"}, {"algo": "gigpo"}, {"algo": "grpo_but_new"}]) == {"grpo_but_new"}
