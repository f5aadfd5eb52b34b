"""Micro-batches over ranks: which rank computes what, padding, and results that all ranks share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranks_for_tests import Ranks, break_optimizer_state, config_of, local_learner, measure, measure_sharded
from turnwise.training.sharded import assign_batches


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    found = Ranks(tmp_path_factory.mktemp("stores"))
    yield found
    found.stop()


@pytest.mark.parametrize("case", ["trunk critic", "head critic"])
def test_sharded_learner_measures_like_the_local_one(ranks: Ranks, case: str) -> None:
    config = config_of(case)
    theirs = measure(local_learner(config), config)
    for ours in ranks.run(2, measure_sharded, case):
        assert ours["ranks"] == 2
        assert ours["norms"] == pytest.approx(theirs["norms"], rel=1e-4)
        assert ours["step"] == pytest.approx(theirs["step"], rel=1e-3, abs=1e-6), "a padding batch trains nothing"
        assert ours["names"] == theirs["names"]
        assert ours["value_head"].keys() == theirs["value_head"].keys()
        for name, each in theirs["value_head"].items():
            torch.testing.assert_close(ours["value_head"][name], each, atol=2e-5, rtol=1e-3)
        assert len(ours["tokens"]) > 2 and len(ours["tokens"]) % 2, "the last round is padded"
        for mine, other in zip(ours["tokens"], theirs["tokens"], strict=True):
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)
        # The critic's gradient is finite; the policy's is not, and that in one micro-batch, of one rank.
        assert ours["skipped"] == theirs["skipped"] == 1
        assert ours["unchanged"]
        assert ours["empty"] == ([], [])


def test_sharded_check_finds_an_optimizer_state_of_one_rank(ranks: Ranks, tmp_path: Path) -> None:
    for skipped, error in ranks.run(2, break_optimizer_state, "plain", tmp_path):
        assert skipped == 7
        assert error.startswith("the weights are not finite now")


@given(st.lists(st.integers(1, 100), max_size=20), st.integers(1, 5))
def test_assign_batches_gives_each_batch_to_one_rank(sizes: list[int], ranks: int) -> None:
    passes = assign_batches(sizes, ranks)
    assert sorted(each.index for own in passes for each in own if not each.padding) == list(range(len(sizes)))
    assert {len(own) for own in passes} == {-(-len(sizes) // ranks)}
    tokens = [sum(sizes[each.index] for each in own) for own in passes]
    assert max(tokens) - min(tokens) <= max(sizes, default=0)


def test_assign_batches_puts_similar_sizes_into_a_round() -> None:
    passes = assign_batches([2, 10, 2, 9, 3], 2)
    rounds = [[own[number] for own in passes] for number in range(3)]
    assert [sorted(each.index for each in both) for both in rounds] == [[1, 3], [0, 4], [2, 2]]
    assert [each.padding for each in rounds[2]].count(True) == 1


def test_assign_batches_gives_the_larger_batch_to_the_emptier_rank() -> None:
    passes = assign_batches([10, 9, 8, 4], 2)
    assert [[each.index for each in own] for own in passes] == [[0, 3], [1, 2]]
