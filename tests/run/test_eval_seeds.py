from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.task import Split
from turnwise.envs.seeds import seed_for
from turnwise.run.evaluation.seeds import read_seeds, write_seeds

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@pytest.mark.parametrize("split", SPLITS)
def test_read_seeds_reads_numbers_and_ranges(split: Split) -> None:
    assert read_seeds("3,7,10-12", split) == tuple(seed_for(split, index) for index in (3, 7, 10, 11, 12))
    assert read_seeds("5", split) == (seed_for(split, 5),)


def test_read_seeds_reads_a_file_with_comments(tmp_path: Path) -> None:
    (tmp_path / "seeds.txt").write_text("# hard ones\n3, 7\n10-12  # a range\n\n")
    assert read_seeds(str(tmp_path / "seeds.txt"), "test") == read_seeds("3,7,10-12", "test")


def test_read_seeds_accepts_recorded_seeds_of_the_split_only() -> None:
    recorded = seed_for("validation", 4)
    assert read_seeds(f"{recorded},9", "validation") == (recorded, seed_for("validation", 9))
    with pytest.raises(UserError, match=r"belongs to the validation split, not to test. Choose split validation"):
        read_seeds(str(recorded), "test")


@given(indices=st.lists(st.integers(0, 60), min_size=1, max_size=30, unique=True), split=st.sampled_from(SPLITS))
def test_seeds_round_trip(indices: list[int], split: Split) -> None:
    seeds = [seed_for(split, index) for index in indices]
    assert read_seeds(write_seeds(seeds), split) == tuple(seeds)


def test_consecutive_seeds_are_written_as_ranges() -> None:
    assert write_seeds([3, 7, 10, 11, 12, 14]) == "3,7,10-12,14"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "contains no seeds"),
        (",", "contains no seeds"),
        ("1,x", '"x" is neither a seed nor a file that exists'),
        ("5-3", '"5-3" is not a seed'),
        ("-3", '"-3" is neither a seed'),
        ("1,2,1", "names 1 twice. Give each seed once; tries"),
        ("1-4,3", "names 3 twice"),
        ("0-99999999999", "more than 1000000"),
        ("9" * 15, "belongs to no split"),
        ("٣", '"٣" is not a seed'),
    ],
)
def test_read_seeds_rejects_invalid_lists(text: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        read_seeds(text, "test")


def test_read_seeds_rejects_a_binary_file(tmp_path: Path) -> None:
    (tmp_path / "seeds").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="seeds is not UTF-8 text"):
        read_seeds(str(tmp_path / "seeds"), "test")


def test_read_seeds_finds_a_duplicate_among_many() -> None:
    """In one pass: comparing all pairs would take an hour."""
    with pytest.raises(UserError, match="seeds names 199999 twice"):
        read_seeds("0-199999,199999", "test")
