"""turnwise against numbers that other systems' original functions gave for the same inputs, one case a record.

TURNWISE_GOLDEN names another file of the same schema; `pytest -rs` lists what is left out and why.
Where turnwise decides otherwise than a record: a group of one has advantage 0; a trajectory without a sampled token
enters no statistic, so groups (of group estimators) and batches (of losses that average over rows) with one are left
out; of gigpo the step part is compared, since the episode part of its records counts an episode once a step;
`seq-mean-token-sum-norm` is a mean over sequences, so a record's plain sum is ours times their number.
"""

from collections.abc import Callable
from typing import Any

import pytest
from golden_advantages_for_tests import ADVANTAGE_RUNNERS
from golden_filters_for_tests import FILTER_RUNNERS
from golden_for_tests import GOLDEN, Record
from golden_losses_for_tests import LOSS_RUNNERS, reason_to_leave_out

NOT_OFFERED = "turnwise does not offer it"
SKIPPED = {
    "archer": NOT_OFFERED,
    "archer_baseline": NOT_OFFERED,
    "iql": NOT_OFFERED,
}


RUNNERS: dict[str, Callable[[Record], None]] = {
    **ADVANTAGE_RUNNERS,
    **LOSS_RUNNERS,
    **FILTER_RUNNERS,
}


def reason_to_skip(record: Record) -> str | None:
    return SKIPPED.get(record["algo"]) or reason_to_leave_out(record)


def unknown_algorithms(records: list[Record]) -> set[str]:
    return {record["algo"] for record in records} - RUNNERS.keys() - SKIPPED.keys()


def case(record: Record) -> Any:
    reason = reason_to_skip(record)
    marks = [pytest.mark.skip(reason=f"golden {record['algo']}: {reason}")] if reason else []
    return pytest.param(record, id=record["id"], marks=marks)


@pytest.mark.parametrize("record", [case(record) for record in GOLDEN["records"]])
def test_golden_record(record: Record) -> None:
    assert record["algo"] in RUNNERS, f"unknown algorithm {record['algo']}: add it to RUNNERS or SKIPPED"
    RUNNERS[record["algo"]](record)


def test_every_algorithm_of_the_file_is_run_or_listed_as_skipped() -> None:
    assert GOLDEN["schema"] == 1
    assert unknown_algorithms(GOLDEN["records"]) == set()
    assert not RUNNERS.keys() & SKIPPED.keys()


def test_unknown_algorithm_in_the_file_is_found() -> None:
    assert unknown_algorithms([{"algo": "grpo"}, {"algo": "archer"}, {"algo": "grpo_but_new"}]) == {"grpo_but_new"}
