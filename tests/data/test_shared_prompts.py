"""Beginnings that samples share: which are shared, and what they cost a micro-batch."""

import pytest
from test_packing import rows_of

from episodes_for_tests import renderer, trajectory_of, turn_of
from turnwise.core.messages import Exchange, system, user
from turnwise.core.samples import Sample
from turnwise.core.trajectory import Stop
from turnwise.data.demonstrations import build_demonstration
from turnwise.data.packing import SHORTEST_PREFIX, micro_batches, pack
from turnwise.data.samples import build_samples


def samples_with(*contexts: list[int]) -> list[Sample]:
    """Each answers with three tokens of its own."""
    turns = [turn_of(ids, [60 + 3 * n, 61 + 3 * n, 62 + 3 * n], extends=False) for n, ids in enumerate(contexts)]
    return build_samples([trajectory_of([turn]) for turn in turns])


def test_tokens_after_a_difference_are_not_shared() -> None:
    common, tail = [*range(3, 15)], [7] * 20
    samples = samples_with([*common, 30, *tail], [*common, 31, *tail], [*common, 32, *tail])
    batch = pack(samples)
    assert batch.lengths[0] == len(common) and batch.parents == (-1, 0, 0, 0)
    rows = [ids for ids, _ in rows_of(batch)[1:]]
    assert rows == [samples[index].ids.tolist() for index in batch.order]


@pytest.mark.parametrize(("common", "shared"), [(SHORTEST_PREFIX, True), (SHORTEST_PREFIX - 1, False)])
def test_short_prefixes_are_not_shared(common: int, shared: bool) -> None:
    batch = pack(samples_with([5] * common + [30, 31], [5] * common + [32, 33]))
    assert batch.parents == ((-1, 0, 0) if shared else (-1, -1))


def test_each_micro_batch_counts_its_prompt() -> None:
    samples = samples_with(*[[5] * 21] * 9)
    parts = micro_batches(samples, max_tokens=32)
    assert sorted(index for part in parts for index in part) == list(range(9))
    sizes = [len(pack([samples[index] for index in part]).ids) for part in parts]
    assert max(sizes) <= 32 and len(parts) == 3


def test_demonstrations_end_each_turn_once() -> None:
    opening, later, answers = (system("Be brief."), user("Two?")), (user("Three?"),), ("<answer>4</answer>", "7")
    exchanges = [Exchange(messages=opening, answer=answers[0]), Exchange(messages=later, answer=answers[1])]
    speak = renderer()
    expected = [*speak.start(opening), *speak.answer(answers[0]), *speak.extend(later, Stop.EOS), *speak.answer("7")]
    assert build_demonstration(0, exchanges, speak).ids.tolist() == expected
