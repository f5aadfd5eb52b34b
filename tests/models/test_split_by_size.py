"""Splitting into parts of limited size."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from turnwise.models.memory.split import split_by_size


@given(st.lists(st.integers(0, 9)), st.integers(1, 12))
def test_split_by_size_keeps_the_order_and_fills_each_part(sizes: list[int], limit: int) -> None:
    parts = split_by_size(sizes, lambda size: size, limit)
    assert [size for part in parts for size in part] == sizes
    assert all(sum(part) <= limit or len(part) == 1 for part in parts)
    assert all(sum(part) + after[0] > limit for part, after in pairwise(parts))
