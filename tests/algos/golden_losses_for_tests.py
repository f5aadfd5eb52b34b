"""Run losses, corrections, KL, value, entropy and aggregation against the golden records."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from choices_for_tests import choose
from golden_for_tests import Arrays, Record, arrays_of, close, close_all
from torch import Tensor

from turnwise.algos.entropy import logprobs_and_entropy
from turnwise.algos.kl import KL_ESTIMATORS, KlCoefficient, subtract_kl
from turnwise.algos.loss_types import Loss, LossInputs, LossResult, SelectingLoss
from turnwise.algos.losses import AGGREGATIONS, LOSSES, value_loss
from turnwise.algos.off_policy import (
    CORRECTIONS,
    OFF_POLICY_METRICS,
    REJECTIONS,
    CorrectionResult,
    apply_correction,
    compute_off_policy_metrics,
)

TRL_MEMBERS = {
    "grpo": ("ppo", "seq-mean-token-mean"),
    "bnpo": ("ppo", "token-mean"),
    "dapo": ("ppo", "token-mean"),
    "dr_grpo": ("ppo", "seq-mean-token-sum-norm"),
    "cispo": ("cispo", "token-mean"),
    "sapo": ("sapo", "seq-mean-token-mean"),
    "vespo": ("vespo", "token-mean"),
}
OFFPOLICY_NAMES = {
    "kl": "offpolicy_kl_k1",
    "k3_kl": "offpolicy_kl_k3",
    "training_ppl": "offpolicy_ppl",
    "rollout_ppl": "offpolicy_ppl_sampler",
    "ppl_ratio": "offpolicy_ppl_ratio",
    "chi2_token": "offpolicy_chi2_token",
    "chi2_seq": "offpolicy_chi2_sequence",
}
OFFPOLICY_NOT_RECORDED = {
    *("training_log_ppl", "rollout_log_ppl", "log_ppl_diff"),
    *("log_ppl_abs_diff", "log_ppl_diff_max", "log_ppl_diff_min"),
}
UNCLAMPED_K3 = "k3_unclamped"
"""The one expected value that is not compared: turnwise's k3 is the clamped one."""


def reason_to_leave_out(record: Record) -> str | None:
    """Return why a record of losses is not compared, if turnwise deliberately differs."""
    if record["algo"] in ("trl_loss", "geo_mean") and not arrays_of(record)["mask"].any(dim=1).all():
        return "the record averages over rows without a sampled token too, turnwise never does"
    if record["algo"] == "decoupled_ppo" and (record["params"]["correction"] or {}).get("metric") == "kl_k3":
        return (
            "AReaL masks by exp(-d) - 1 + d, d = log rho, which estimates KL(pi_old | mu) from samples of pi_old; the "
            "tokens are samples of mu, so turnwise masks by rho - 1 - log rho, which estimates KL(mu | pi_old)"
        )
    return None


def aggregate(token_loss: Tensor, mask: Tensor, mode: str, constant_length: int) -> Tensor:
    """[B, T] -> a number, as training does it: weights a token, then a sum; a row is a sequence."""
    sequences = mask.nonzero()[:, 0]
    weights = choose(AGGREGATIONS, mode, constant_length=constant_length).weights(sequences, torch.float64)
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
        policy_logprobs=arrays["new_logp"][mask],
        old_logprobs=arrays["old_logp"][mask],
        sampler_logprobs=arrays["rollout_logp"][mask],
        advantages=(given if given.dim() == 2 else given[:, None].expand(mask.shape))[mask],
        segment_ids=mask.nonzero()[:, 0],
        turn_ids=arrays["turn_id"][mask],
    )


def loss_of(name: str, given: dict[str, Any]) -> Loss:
    return choose(
        LOSSES,
        name,
        clip_low=given.get("clip_low", 0.2),
        clip_high=given.get("clip_high", 0.2),
        dual_clip=given.get("clip_c"),
        tau_positive=given.get("tau_pos", 1.0),
        tau_negative=given.get("tau_neg", 1.05),
        share=given.get("cov_ratio", 2e-4),
        low=given.get("cov_lb", 1.0),
        high=given.get("cov_ub", 5.0),
        coef=given.get("kl_coef", 1.0),
        k_positive=given.get("k_pos", 2.0),
        lambda_positive=given.get("lambda_pos", 3.0),
        k_negative=given.get("k_neg", 3.0),
        lambda_negative=given.get("lambda_neg", 2.0),
    )


def compute_loss(loss: Loss, inputs: LossInputs) -> LossResult:
    """With the selection over all tokens, as over an optimiser step; the draws matter only where a share is below 1."""
    if isinstance(loss, SelectingLoss):
        inputs = replace(inputs, selected=loss.select(inputs, torch.zeros(len(inputs.policy_logprobs))))
    return loss.compute(inputs)


def correction_of(arrays: Arrays, name: str, **settings: Any) -> CorrectionResult:
    """With the weights divided by their mean over the batch where `normalise` is given."""
    inputs, correction = loss_inputs(arrays, "adv_token"), choose(CORRECTIONS, name, **settings)
    scale = correction.scale(inputs, torch.ones_like(inputs.policy_logprobs, dtype=torch.bool))
    result = correction.compute(inputs)
    return replace(result, weights=result.weights * scale)


def rejecting(arrays: Arrays, weighed: CorrectionResult, level: str, **settings: Any) -> CorrectionResult:
    """A correction together with algo.rejection, of which the pool of a KL estimate is its mean."""
    if settings["statistic"] != "ratio":
        settings["pool"] = "mean"
    outside = rejected_of(arrays, level, **settings)
    return replace(weighed, weights=weighed.weights.masked_fill(outside, 0.0), outside=outside, dropped=outside)


def rejected_of(arrays: Arrays, level: str = "veto", **settings: Any) -> Tensor:
    return choose(REJECTIONS, level, **settings).rejected(loss_inputs(arrays, "adv_token"))


def policy_loss(name: str, default_mode: str = "token-mean") -> Callable[[Record], None]:
    """Token losses, aggregates, the gradient by the log-probabilities, and clip fractions where the loss clips."""

    def run(record: Record) -> None:
        arrays, given, expected = arrays_of(record), record.get("params", {}), dict(record["expected"])
        mask, new_logp = arrays["mask"], arrays["new_logp"].requires_grad_()
        loss = loss_of(name, ({"clip_c": 3.0} if name == "ppo" else {}) | given)
        result = compute_loss(loss, loss_inputs(arrays, given["advantages"]))
        if "is_cap" in given:
            result = apply_correction(
                result, correction_of(arrays, "truncated", level=given["is_level"], bounds=(0.0, given["is_cap"]))
            )
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
        if name == "clip_cov":
            got["pg_clipfrac"] = metrics["cov_fraction"].mean()
        if name == "kl_cov":
            got["ppo_kl"] = KL_ESTIMATORS["abs"](new_logp, arrays["old_logp"]).detach()[mask].mean()
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
    result = compute_loss(loss_of(name, given | clips), inputs)
    penalty = given.get("beta", 0.0) * KL_ESTIMATORS["k3"](new_logp, arrays["ref_logp"])
    token_loss = placed(arrays, result.token_loss) + penalty
    loss = aggregate(token_loss, mask, mode, given.get("max_completion_length", mask.shape[1]))
    close_all(record, {"loss": loss.detach(), "grad_new_logp": gradient(loss, new_logp)})


def areal_gspo(record: Record) -> None:
    """gspo with the mean over tokens; a row's advantage is the mean over its tokens."""
    arrays, given = arrays_of(record), record["params"]
    mask, new_logp, advantages = arrays["mask"], arrays["new_logp"].requires_grad_(), arrays[given["advantages"]]
    if advantages.dim() == 2:
        arrays["row_mean"] = torch.where(mask, advantages, 0.0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    inputs = loss_inputs(arrays, "row_mean" if advantages.dim() == 2 else given["advantages"])
    result = compute_loss(loss_of("gspo", given), inputs)
    loss = aggregate(placed(arrays, result.token_loss), mask, "token-mean", 1)
    close_all(record, {"loss": loss.detach(), "grad_new_logp": gradient(loss, new_logp)})


def corrected_ppo(record: Record, correction: Callable[[Arrays], CorrectionResult]) -> CorrectionResult:
    """Compares loss and gradient; dropped tokens stay in the mean."""
    arrays, given = arrays_of(record), record["params"]
    new_logp, found = arrays["new_logp"].requires_grad_(), correction(arrays)
    result = apply_correction(loss_of("ppo", given).compute(loss_inputs(arrays, given["advantages"])), found)
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
        low, high = given["lower"] or 0.0, sys.float_info.max if given["upper"] is None else given["upper"]
        level, free = given["level"], (0.0, sys.float_info.max)
        pooled = f"{level}_mean" if given["agg"] == "mean" and level != "token" else level
        if given["action"] == "clamp":
            return correction_of(arrays, "truncated", level=pooled, bounds=(low, high))
        statistic = given["metric"].removeprefix("kl_")
        if statistic == "ratio":  # a kept token has the weight of its unit
            weights = correction_of(arrays, "truncated", level=pooled, bounds=free)
        else:
            weights = correction_of(arrays, "decoupled")
        return rejecting(arrays, weights, level=level, statistic=statistic, pool=given["agg"], bounds=(low, high))

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
    bounds = {"bounds": (given["min"] or 0.0, given["max"])}
    settings: dict[str, tuple[str, dict[str, Any]]] = {
        "tis": ("truncated", bounds),
        "icepop": ("masked", bounds),
    }

    def correction(arrays: Arrays) -> CorrectionResult:
        if given["type"] != "seq-mask-tis":
            name, params = settings[given["type"]]
            return correction_of(arrays, name, **params)
        decoupled = correction_of(arrays, "decoupled")
        return rejecting(arrays, decoupled, "sequence", statistic="ratio", pool="mean", **bounds)

    found = corrected_ppo(record, correction)
    outside = placed(arrays, found.outside)
    rows = outside.any(dim=1).double().mean()  # rows without a sampled token are in bounds
    by_row = given["type"] == "seq-mask-tis"
    close(record, rows if by_row else found.outside.double().mean(), record["expected"]["oob_fraction"], "oob_fraction")


def tis_weights(record: Record) -> None:
    arrays, given = arrays_of(record), record["params"]
    mask, level = arrays["mask"], given["level"]
    plain, found = (
        correction_of(arrays, "truncated", level=level, bounds=(0.0, given["cap"]), normalise=normalise).weights
        for normalise in (False, given["batch_normalize"])
    )
    weights, factor = placed(arrays, found), (plain / found)[0]
    close_all(record, {"weights": weights, "seq_weights": of_rows(weights, mask, level), "norm_factor": factor})


def of_rows(weights: Tensor, mask: Tensor, level: str) -> Tensor:
    """The one weight of each row [B], which must stand on all of its tokens where the level is a sequence."""
    found = weights.amax(dim=1)
    assert level == "token" or torch.equal(weights, torch.where(mask, found[:, None], 0.0))
    return found


def rejection_of(option: str, threshold: str) -> dict[str, Any]:
    """`seq_mean_k3` and `0.04` -> settings of turnwise. k1 has bounds of the ratio, the others only an upper one."""
    *unit, statistic = option.split("_")
    bounds = [float(each) for each in threshold.split("_")]
    level = {"token": "token", "seq": "sequence"}[unit[0]]
    return {
        "level": level,
        "statistic": "ratio" if statistic == "k1" else statistic,
        "pool": unit[1] if level == "sequence" else "mean",
        "bounds": (bounds[0] if statistic == "k1" else 0.0, bounds[-1]),
    }


def mis_reject_mask(record: Record) -> None:
    """Each rule is an `algo.rejection`; two together are applied one after the other."""
    arrays, given = arrays_of(record), record["params"]
    mask = arrays["mask"]
    rules = [
        rejection_of(*each) for each in zip(*(given[key].split(",") for key in ("option", "threshold")), strict=True)
    ]
    rejected = torch.stack([rejected_of(arrays, **rule) for rule in rules]).any(dim=0)
    keep = placed(arrays, ~rejected)
    close_all(record, {"keep_mask": keep, "masked_fraction": rejected.double().mean()})
    assert torch.equal(keep.bool(), keep.bool() & mask)


def mis_weights(record: Record) -> None:
    """`mask` leaves weights as they are and rejects: decoupled weights with the same bounds as `algo.rejection`."""
    arrays, given = arrays_of(record), record["params"]
    mask, high, low = arrays["mask"], given["tis_upper_bound"], given["tis_lower_bound"]
    pooled = {"token": ("token", "sum"), "sequence": ("sequence", "sum"), "geometric": ("sequence", "mean")}
    level, pool = pooled[given["tis_level"]]
    bounds = {
        "truncate": (0.0, high),
        "clip": (1 / high if low is None else low, high),
        "mask": (0.0, sys.float_info.max),
    }[given["tis_mode"]]
    unit = f"{level}_mean" if pool == "mean" else level
    weights = placed(
        arrays,
        correction_of(arrays, "truncated", level=unit, bounds=bounds, normalise=given["tis_batch_normalize"]).weights,
    )
    rejection: dict[str, Any] = {}
    if given["use_rs"]:
        level, pool = pooled[given["rs_level"]]
        rejection = {"level": level, "pool": pool, "bounds": (given["rs_lower_bound"], given["rs_upper_bound"])}
    elif given["tis_mode"] == "mask":
        rejection = {"level": level, "pool": pool, "bounds": (low, high)}
    rejected = rejected_of(arrays, lowest=given["rs_veto_threshold"] or 0.0)
    if rejection:
        rejected |= rejected_of(arrays, **rejection)
    got = {
        "weights": weights,
        "seq_weights": of_rows(weights, mask, "token"),
        "keep_mask": placed(arrays, ~rejected),
    }
    close_all(record, got)


def offpolicy(record: Record) -> None:
    """Rows without a sampled token are none of turnwise's sequences; logarithms and extremes are not recorded."""
    arrays, expected = arrays_of(record), record["expected"]
    mask = arrays["mask"]
    rows = mask.nonzero()[:, 0].unique(return_inverse=True)[1]
    found = compute_off_policy_metrics(
        arrays["old_logp"][mask], arrays["rollout_logp"][mask], rows, int(rows.max()) + 1
    )
    got = dict(zip(OFF_POLICY_METRICS, found, strict=True))
    assert expected.keys() - OFFPOLICY_NAMES.keys() <= OFFPOLICY_NOT_RECORDED
    for theirs, ours in OFFPOLICY_NAMES.items():
        close(record, got[ours], expected[theirs], theirs)


def weights_of(name: str) -> Callable[[Record], None]:
    def run(record: Record) -> None:
        arrays, given = arrays_of(record), record["params"]
        weights = correction_of(arrays, name, bounds=(given["min"], given["max"])).weights
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
    rewards = subtract_kl(arrays["token_rewards"], estimate, arrays["mask"], record["params"]["coef"])
    close_all(record, {"token_rewards": rewards})


def adaptive_kl(record: Record) -> None:
    given, inputs, after = record["params"], record["inputs"], []
    coefficient = KlCoefficient(value=given["init"], target=given["target"], horizon=given["horizon"])
    for measured, count in zip(inputs["kl"], inputs["n_steps"], strict=True):
        coefficient = coefficient.update(measured, count)
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
    arrays, expected = arrays_of(record), record["expected"]
    mask, logits = arrays["mask"], arrays["logits"].requires_grad_()
    flat = logits.flatten(0, 1)
    _, found = logprobs_and_entropy(flat, torch.zeros(len(flat), dtype=torch.int64), torch.ones(len(flat)))
    token_entropy = found.view(mask.shape)
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
    "gpg_loss": policy_loss("reinforce"),
    "geo_mean": policy_loss("geo_mean", "seq-mean-token-mean"),
    "clip_cov": policy_loss("clip_cov"),
    "kl_cov": policy_loss("kl_cov"),
    "areal_gspo": areal_gspo,
    "trl_loss": trl_loss,
    "decoupled_ppo": decoupled_ppo,
    "is_corrected_ppo": is_corrected_ppo,
    "tis_weights": tis_weights,
    "mis_reject_mask": mis_reject_mask,
    "mis_weights": mis_weights,
    "offpolicy_metrics": offpolicy,
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
