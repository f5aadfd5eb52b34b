"""How records of losses, corrections, KL, value, entropy and aggregation run through turnwise."""

import math
from collections.abc import Callable
from typing import Any

import torch
from golden_for_tests import Arrays, Record, arrays_of, close, close_all
from torch import Tensor

from turnwise.algos.aggregation import AGGREGATIONS
from turnwise.algos.corrections import CORRECTIONS, CorrectionParams, CorrectionResult, correct
from turnwise.algos.entropy import entropy_from_logits, logprobs_and_entropy
from turnwise.algos.kl import KL_ESTIMATORS, KlCoefficient, rewards_less_kl
from turnwise.algos.losses import LOSSES, LossInputs, LossParams
from turnwise.algos.ratios import sum_over, unit_ids
from turnwise.algos.values import value_loss

TRL_MEMBERS = {
    "grpo": ("ppo", "seq-mean-token-mean"),
    "bnpo": ("ppo", "token-mean"),
    "dapo": ("ppo", "token-mean"),
    "dr_grpo": ("ppo", "seq-mean-token-sum-norm"),
    "cispo": ("cispo", "token-mean"),
    "sapo": ("sapo", "seq-mean-token-mean"),
}
TRL_NOT_OFFERED = {"vespo"}
UNCLAMPED_K3 = "k3_unclamped"
"""The one expected value that is not compared: turnwise's k3 is the clamped one."""


def mean_weight(weights: Tensor, units: Tensor) -> Tensor:
    """The mean of [M] weights with each unit counted once, to divide by, so that a correction keeps the loss's scale.

    Only ever over all tokens of an optimiser step: over a micro-batch the result would depend on how the step is cut.
    """
    share = 1 / sum_over(torch.ones_like(weights), units)
    return (weights * share).sum() / share.sum()


def reason_to_leave_out(record: Record) -> str | None:
    """Of the losses' records, those that the golden README lets go."""
    if record["algo"] == "trl_loss" and record["params"]["loss_type"] in TRL_NOT_OFFERED:
        return "turnwise does not offer it"
    if record["algo"] in ("trl_loss", "geo_mean") and not arrays_of(record)["mask"].any(dim=1).all():
        return "the record averages over rows without a sampled token too, turnwise never does"
    return None


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


def placed(arrays: Arrays, tokens: Tensor) -> Tensor:
    """The sampled tokens' numbers back at their places in [B, T]."""
    return torch.zeros_like(arrays["new_logp"]).masked_scatter(arrays["mask"], tokens.double())


def loss_inputs(arrays: Arrays, advantages: str) -> LossInputs:
    """The flat sampled tokens; a row is a segment, and keeps its turns."""
    mask, given = arrays["mask"], arrays[advantages]
    return LossInputs(
        logprobs=arrays["new_logp"][mask],
        old_logprobs=arrays["old_logp"][mask],
        sampler_logprobs=arrays["rollout_logp"][mask],
        advantages=(given if given.dim() == 2 else given[:, None].expand(mask.shape))[mask],
        segment_ids=mask.nonzero()[:, 0],
        turn_ids=arrays["turn_id"][mask],
    )


def loss_params(given: dict[str, Any], **others: Any) -> LossParams:
    return LossParams(
        clip_low=given.get("clip_low", 0.2),
        clip_high=given.get("clip_high", 0.2),
        dual_clip=given.get("clip_c"),
        tau_positive=given.get("tau_pos", 1.0),
        tau_negative=given.get("tau_neg", 1.05),
        **others,
    )


def correction_of(arrays: Arrays, name: str, **params: Any) -> CorrectionResult:
    return CORRECTIONS[name].compute(loss_inputs(arrays, "adv_token"), CorrectionParams(**params))


def policy_loss(name: str, default_mode: str = "token-mean") -> Callable[[Record], None]:
    """Token losses, aggregates, the gradient by the log-probabilities, and clip fractions where the loss clips."""

    def run(record: Record) -> None:
        arrays, given, expected = arrays_of(record), record.get("params", {}), dict(record["expected"])
        mask, new_logp = arrays["mask"], arrays["new_logp"].requires_grad_()
        params = loss_params(({"clip_c": 3.0} if name == "ppo" else {}) | given)
        result = LOSSES[name].compute(loss_inputs(arrays, given["advantages"]), params)
        if "is_cap" in given:
            result = correct(result, correction_of(arrays, "truncated", level=given["is_level"], high=given["is_cap"]))
        token_loss, metrics = placed(arrays, result.token_loss), result.metrics
        mode, losses = expected.pop("grad_mode", default_mode), expected.pop("loss")
        close_aggregates(record, token_loss.detach(), mask, losses if isinstance(losses, dict) else {mode: losses})
        nothing = torch.zeros(1)
        got = {
            "token_loss": token_loss.detach(),
            "grad_new_logp": gradient(aggregates(token_loss, mask, [mode])[mode], new_logp),
            "pg_clipfrac": metrics.get("clip_fraction", nothing).mean(),
            "pg_clipfrac_lower": metrics.get("clip_fraction_low", nothing).mean(),
            "ppo_kl": metrics["approx_kl"].mean(),
        }
        for key, value in expected.items():
            close(record, got[key], value, key)

    return run


def trl_loss(record: Record) -> None:
    """With the KL to the reference as a loss; cispo's cap is one-sided, and `delta` is the dual clip."""
    arrays, given = arrays_of(record), record["params"]
    mask, new_logp = arrays["mask"], arrays["new_logp"].requires_grad_()
    name, mode = TRL_MEMBERS[given["loss_type"]]
    if given.get("level", "token") == "sequence":
        name = {"ppo": "gspo"}[name]
    clips = {"clip_c": given.get("delta")}
    if "ratio_cap" in given:
        clips |= {"clip_low": 1.0, "clip_high": given["ratio_cap"] - 1}
    inputs = loss_inputs(arrays, given.get("advantages", "adv_seq"))
    result = LOSSES[name].compute(inputs, loss_params(given | clips))
    penalty = given.get("beta", 0.0) * KL_ESTIMATORS["k3"](new_logp, arrays["ref_logp"])
    token_loss = placed(arrays, result.token_loss) + penalty
    loss = aggregate(token_loss, mask, mode, given.get("max_completion_length", mask.shape[1]))
    close_all(record, {"loss": loss.detach(), "grad_new_logp": gradient(loss, new_logp)})


def corrected_ppo(record: Record, correction: Callable[[Arrays], CorrectionResult]) -> CorrectionResult:
    """Compares loss and gradient; dropped tokens stay in the mean."""
    arrays, given = arrays_of(record), record["params"]
    new_logp, found = arrays["new_logp"].requires_grad_(), correction(arrays)
    result = correct(LOSSES["ppo"].compute(loss_inputs(arrays, given["advantages"]), loss_params(given)), found)
    loss = aggregate(placed(arrays, result.token_loss), arrays["mask"], "token-mean", 1)
    close(record, loss.detach(), record["expected"]["loss"], "loss")
    close(record, gradient(loss, new_logp), record["expected"]["grad_new_logp"], "grad_new_logp")
    return found


def decoupled_ppo(record: Record) -> None:
    """The proximal policy is the old one. A sequence's ratio is its geometric mean, and also its tokens' weight."""
    given = record["params"]["correction"]

    def correction(arrays: Arrays) -> CorrectionResult:
        if given is None:
            return correction_of(arrays, "none")
        return correction_of(
            arrays,
            {"mask": "masked", "clamp": "truncated"}[given["action"]],
            level=given["level"],
            low=given["lower"] or 0.0,
            high=math.inf if given["upper"] is None else given["upper"],
            pool={"mean": "mean", "sum": "product"}[given["agg"]],
            statistic=given["metric"].removeprefix("kl_"),
            token_weights=given["metric"] != "ratio",
        )

    arrays, found = arrays_of(record), corrected_ppo(record, correction)
    got = {
        "behave_weight": placed(arrays, found.weights),
        "keep_mask": placed(arrays, ~found.outside),
        "filtered_fraction": found.outside.double().mean(),
    }
    for name in record["expected"].keys() - {"loss", "grad_new_logp"}:
        close(record, got[name], record["expected"][name], name)


def is_corrected_ppo(record: Record) -> None:
    given, arrays = record["params"], arrays_of(record)
    bounds = {"low": given["min"] or 0.0, "high": given["max"]}
    settings: dict[str, tuple[str, dict[str, Any]]] = {
        "tis": ("truncated", bounds),
        "icepop": ("masked", bounds),
        "seq-mask-tis": ("masked", bounds | {"level": "sequence", "pool": "mean"}),
    }
    name, params = settings[given["type"]]
    found = corrected_ppo(record, lambda arrays: correction_of(arrays, name, **params))
    outside = placed(arrays, found.outside)
    rows = outside.any(dim=1).double().mean()  # rows without a sampled token are in bounds
    by_row = given["type"] == "seq-mask-tis"
    close(record, rows if by_row else found.outside.double().mean(), record["expected"]["oob_fraction"], "oob_fraction")


def tis_weights(record: Record) -> None:
    arrays, given = arrays_of(record), record["params"]
    mask, level = arrays["mask"], given["level"]
    weights = correction_of(arrays, "truncated", level=level, high=given["cap"]).weights
    factor = mean_weight(weights, unit_ids(mask.nonzero()[:, 0], arrays["turn_id"][mask], level))
    weights = placed(arrays, weights / factor if given["batch_normalize"] else weights)
    of_row = weights.amax(dim=1)
    assert level == "token" or torch.equal(weights, torch.where(mask, of_row[:, None], 0.0))
    close_all(record, {"weights": weights, "seq_weights": of_row, "norm_factor": factor})


def weights_of(name: str) -> Callable[[Record], None]:
    def run(record: Record) -> None:
        arrays, given = arrays_of(record), record["params"]
        weights = correction_of(arrays, name, low=given["min"], high=given["max"]).weights
        close_all(record, {"weights": placed(arrays, weights)})

    return run


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


def kl_in_reward(record: Record) -> None:
    arrays = arrays_of(record)
    estimate = KL_ESTIMATORS["k1"](arrays["old_logp"], arrays["ref_logp"])
    rewards = rewards_less_kl(arrays["token_rewards"], estimate, arrays["mask"], record["params"]["coef"])
    close_all(record, {"token_rewards": rewards})


def adaptive_kl(record: Record) -> None:
    given, inputs, after = record["params"], record["inputs"], []
    coefficient = KlCoefficient(value=given["init"], target=given["target"], horizon=given["horizon"])
    for measured, count in zip(inputs["kl"], inputs["n_steps"], strict=True):
        coefficient = coefficient.after(measured, count)
        after.append(coefficient.value)
    close_all(record, {"coef_after": after})


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


LOSS_RUNNERS: dict[str, Callable[[Record], None]] = {
    "ppo_clip": policy_loss("ppo"),
    "ppo_clip_tis": policy_loss("ppo"),
    "gspo": policy_loss("gspo"),
    "cispo": policy_loss("cispo"),
    "sapo": policy_loss("sapo"),
    "gpg_loss": policy_loss("gpg"),
    "geo_mean": policy_loss("geo_mean", "seq-mean-token-mean"),
    "trl_loss": trl_loss,
    "decoupled_ppo": decoupled_ppo,
    "is_corrected_ppo": is_corrected_ppo,
    "tis_weights": tis_weights,
    "tis_clip_weights": weights_of("truncated"),
    "icepop_weights": weights_of("masked"),
    "kl": kl,
    "kl_extreme": kl_extreme,
    "kl_in_reward": kl_in_reward,
    "adaptive_kl": adaptive_kl,
    "value_loss": clipped_value_loss,
    "entropy": entropy,
    "loss_agg": loss_agg,
}
