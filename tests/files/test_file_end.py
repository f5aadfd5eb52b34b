"""The readers of a file's end."""

from pathlib import Path

import pytest

from turnwise.files.file_end import read_last_lines, read_last_text


@pytest.mark.parametrize(
    ("limit", "lines"),
    [
        (101, [b"first", b"second", b"third"]),
        (25, [b"first", b"second", b"third"]),
        (24, [b"second", b"third"]),
        (13, [b"third"]),
        (4, []),
    ],
)
def test_last_lines_are_the_whole_ones_within_the_limit(tmp_path: Path, limit: int, lines: list[bytes]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"first\nsecond\nthird\nfourth")
    with path.open("rb") as file:
        assert path.stat().st_size == 25 and read_last_lines(file, limit) == lines


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"one\n two \n\n \n", "two"),
        (b"", None),
        (b"\n \n", None),
        (b"an \xff error", "an � error"),
        (b"x" * 90, "x" * 50),
    ],
)
def test_last_text_is_the_last_line_that_is_not_blank(tmp_path: Path, content: bytes, text: str | None) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(content)
    with path.open("rb") as file:
        assert read_last_text(file, 50) == text
