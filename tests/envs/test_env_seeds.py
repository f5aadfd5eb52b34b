import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for, split_of_seed

splits = st.sampled_from(["train", "validation", "test"])
indices = st.integers(0, 2**40 - 1)


@given(splits, indices)
def test_a_seed_knows_its_split(split, index):
    assert split_of_seed(seed_for(split, index)) == split


@given(splits, indices, splits, indices)
def test_no_two_tasks_share_a_seed(split, index, other_split, other_index):
    same = seed_for(split, index) == seed_for(other_split, other_index)
    assert same == ((split, index) == (other_split, other_index))


def test_the_ends_of_the_ranges_touch_but_do_not_meet():
    assert seed_for("validation", 0) == seed_for("train", SEEDS_PER_SPLIT - 1) + 1
    assert seed_for("test", 0) == seed_for("validation", SEEDS_PER_SPLIT - 1) + 1


@pytest.mark.parametrize("index", [-1, 2**40])
def test_an_index_out_of_range_is_an_error(index):
    with pytest.raises(UserError, match="out of range"):
        seed_for("train", index)


def test_an_unknown_split_or_a_seed_of_none_is_an_error():
    with pytest.raises(UserError, match="train, validation, test"):
        seed_for("tset", 0)
    for seed in (-1, 3 * 2**40):
        with pytest.raises(UserError, match="no split"):
            split_of_seed(seed)
