"""turnwise against numbers that other systems' original functions gave for the same inputs, one case a record.

TURNWISE_GOLDEN names another file of the same schema; `pytest -rs` lists what is left out and why.
Where turnwise decides otherwise than a record: a group of one has advantage 0; a trajectory without a sampled token
enters no statistic, so groups (of group estimators) and batches (of losses that average over rows) with one are left
out; of gigpo the step part is compared, since the episode part of its records counts an episode once a step;
`seq-mean-token-sum-norm` is a mean over sequences, so a record's plain sum is ours times their number; the k3 by which
`masked` drops tokens is that of the other direction than AReaL's, so records of `decoupled_ppo` with it are left out.
"""

from collections.abc import Callable
from typing import Any

import pytest
from golden_advantages_for_tests import ADVANTAGE_RUNNERS
from golden_archer_for_tests import ARCHER_RUNNERS
from golden_filters_for_tests import FILTER_RUNNERS
from golden_for_tests import GOLDEN, Record
from golden_losses_for_tests import LOSS_RUNNERS, reason_to_leave_out

RUNNERS: dict[str, Callable[[Record], None]] = {
    **ADVANTAGE_RUNNERS,
    **LOSS_RUNNERS,
    **ARCHER_RUNNERS,
    **FILTER_RUNNERS,
}


def unknown_algorithms(records: list[Record]) -> set[str]:
    return {record["algo"] for record in records} - RUNNERS.keys()


def case(record: Record) -> Any:
    reason = reason_to_leave_out(record)
    marks = [pytest.mark.skip(reason=f"golden {record['algo']}: {reason}")] if reason else []
    return pytest.param(record, id=record["id"], marks=marks)


@pytest.mark.parametrize("record", [case(record) for record in GOLDEN["records"]])
def test_golden_record(record: Record) -> None:
    assert record["algo"] in RUNNERS, f"unknown algorithm {record['algo']}: add it to RUNNERS"
    RUNNERS[record["algo"]](record)


def test_every_algorithm_of_the_file_is_run() -> None:
    assert GOLDEN["schema"] == 1
    assert unknown_algorithms(GOLDEN["records"]) == set()


def test_unknown_algorithm_in_the_file_is_found() -> None:
    assert unknown_algorithms([{"algo": "grpo"}, {"algo": "archer"}, {"algo": "grpo_but_new"}]) == {"grpo_but_new"}


@pytest.mark.parametrize(("metric", "left_out"), [("kl_k3", True), ("kl_k2", False), ("ratio", False)])
def test_records_of_the_other_k3_are_left_out_with_the_reason(metric: str, left_out: bool) -> None:
    record = {"algo": "decoupled_ppo", "params": {"correction": {"metric": metric}}}
    assert ("samples of mu" in (reason_to_leave_out(record) or "")) == left_out
