import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for, split_of_seed

splits = st.sampled_from(["train", "validation", "test"])
indices = st.integers(0, 2**40 - 1)


@given(splits, indices)
def test_split_of_seed_inverts_seed_for(split, index):
    assert split_of_seed(seed_for(split, index)) == split


@given(splits, indices, splits, indices)
def test_seed_for_is_injective(split, index, other_split, other_index):
    same = seed_for(split, index) == seed_for(other_split, other_index)
    assert same == ((split, index) == (other_split, other_index))


def test_seed_ranges_are_disjoint():
    assert seed_for("validation", 0) == seed_for("train", SEEDS_PER_SPLIT - 1) + 1
    assert seed_for("test", 0) == seed_for("validation", SEEDS_PER_SPLIT - 1) + 1


@pytest.mark.parametrize("index", [-1, 2**40])
def test_seed_for_rejects_indices_out_of_range(index):
    with pytest.raises(UserError, match="out of range"):
        seed_for("train", index)


def test_seed_functions_reject_unknown_splits_and_seeds():
    with pytest.raises(UserError, match="train, validation, test"):
        seed_for("tset", 0)
    for seed in (-1, 3 * 2**40):
        with pytest.raises(UserError, match="no split"):
            split_of_seed(seed)
