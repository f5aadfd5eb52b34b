"""Run filters and mutual information against the golden records."""

from collections.abc import Callable

import torch
from choices_for_tests import choose
from golden_for_tests import Record, arrays_of, close, close_all
from torch import Tensor

from turnwise.algos.diagnostics import measure_retrieval, mutual_information
from turnwise.algos.filters import FILTERS, SCORES, ZERO_SCORE, Filter, Quarter, TopK

STRATEGIES = {"top_k": "top_k", "top_k_abs": "top_count", "min_p": "min_p"}
TOP_P = {"linear": "top_p", "softmax": "top_p_softmax"}
METRICS = {"reward_std": "reward_std", "reward": "reward", "reward_sum": "reward_sum"}


def score(rewards: Tensor, name: str) -> Tensor:
    groups = torch.arange(rewards.shape[0]).repeat_interleave(rewards.shape[1])
    return SCORES[name].reduce(rewards.flatten(), groups, rewards.shape[0])


def compare_selection(record: Record, rewards: Tensor, scores: Tensor, kept: Tensor) -> None:
    expected = dict(record["expected"])
    assert kept.nonzero()[:, 0].tolist() == expected.pop("selected_groups"), record["id"]
    of_group = {"std": score(rewards, "reward_std"), "mean": rewards.mean(dim=1), "max": rewards.amax(dim=1)}
    got = {f"in_group_{name}": values.mean() for name, values in of_group.items()}
    got |= {f"chosen_in_group_{name}": values[kept].mean() for name, values in of_group.items()}
    got |= {"kept_ratio": kept.double().mean(), "zero_count": (scores.abs() <= ZERO_SCORE).sum()}
    for name, value in expected.items():
        close(record, got[name], value, name)


def ragen_filter(record: Record) -> None:
    rewards, given = arrays_of(record)["rewards"], record["params"]
    strategy = given["strategy"]
    name = TOP_P[given["top_p_prob_mode"]] if strategy == "top_p" else STRATEGIES[strategy]
    scores = score(rewards, METRICS[given.get("metric", "reward_std")])
    largest = {"largest": True, "smallest": False}[given["filter_type"]]
    size = {"count": int(given["value"])} if name == "top_count" else {"value": given["value"]}
    chosen = choose(FILTERS, name, largest=largest, keep_zero=given["include_zero"], **size)
    assert isinstance(chosen, Filter)
    compare_selection(record, rewards, scores, chosen.keeps(scores))


def starpo_s_filter(record: Record) -> None:
    rewards, given = arrays_of(record)["rewards"], record["params"]
    scores = score(rewards, "reward_std")
    largest = {"std": True, "std_rev": False}[given["type"]]
    kept = TopK(value=given["ratio"], largest=largest).keeps(scores)
    if given["ratio"] == 0.25:
        assert torch.equal(kept, Quarter(largest=largest).keeps(scores))
    compare_selection(record, rewards, scores, kept)


def collapse_metrics(record: Record) -> None:
    arrays, given = arrays_of(record), record["params"]
    own, prompts = arrays["col_of_row"].long(), arrays["prompt_of_col"].long()
    got: dict[str, float] = {}
    for index, (matrix, suffix) in enumerate((("ll_mean", ""), ("ll_sum", "_seq"))):
        previous = given["ema_prev"] and given["ema_prev"][index]
        plain = mutual_information(arrays[matrix], own, epsilon=given["std_eps"])
        smooth = mutual_information(
            arrays[matrix], own, epsilon=given["std_eps"], previous_std=previous, decay=given["ema_decay"]
        )
        got |= {
            f"mi{suffix}_estimate": plain.information,
            f"conditional_entropy{suffix}_est": plain.conditional_entropy,
            f"reasoning_entropy{suffix}_est": plain.entropy,
            f"marginal_std{suffix}": plain.marginal_std,
            f"mi_zscore{suffix}": plain.zscore,
            f"marginal_std_ema{suffix}": smooth.marginal_std,
            f"mi_zscore_ema{suffix}": smooth.zscore,
        }
        if not suffix:
            got |= {"mi_upper_bound": plain.bound, "matched_log_prob_mean": -plain.conditional_entropy}
            got |= {"marginal_log_prob_mean": -plain.entropy}
    for k, found in measure_retrieval(arrays["ll_mean"], own, prompts).items():
        at = "" if k == 1 else f"@{k}"
        got |= {f"retrieval_accuracy{at}": found.accuracy, f"retrieval_chance_level{at}": found.chance}
        got |= {f"retrieval_above_chance{at}": found.above_chance}
    close_all(record, got)


FILTER_RUNNERS: dict[str, Callable[[Record], None]] = {
    "ragen_filter": ragen_filter,
    "starpo_s_filter": starpo_s_filter,
    "collapse_metrics": collapse_metrics,
}
