"""Truncation of long texts in the middle."""

from hypothesis import given
from hypothesis import strategies as st

from turnwise.text.truncation import CUT_NOTE, OutputBuffer, first_line, shorten, truncate_middle


@given(text=st.text(max_size=300), limit=st.integers(1, 200))
def test_truncate_middle_keeps_both_ends(text: str, limit: int) -> None:
    cut = truncate_middle(text, limit)
    if len(text) <= limit:
        assert cut == text
    else:
        assert cut.startswith(text[: limit // 2]) and cut.endswith(text[-(limit - limit // 2) :])
        assert len(cut) <= limit + 40


@given(data=st.data(), limits=st.lists(st.integers(60, 900), min_size=1, max_size=4))
def test_truncate_middle_twice_counts_all_cut_characters(data: st.DataObject, limits: list[int]) -> None:
    text = "ab\n" * data.draw(st.integers(400, 3000))
    cut = text
    for limit in limits:
        cut = truncate_middle(cut, limit)
    (note,) = CUT_NOTE.finditer(cut)
    shown = len(cut) - len(note[0])
    assert int(note[1]) == len(text) - shown and shown <= min(limits)
    assert text.startswith(cut[: note.start()]) and text.endswith(cut[note.end() :])


def test_truncate_middle_merges_the_notes_it_cuts() -> None:
    parts = [truncate_middle(letter * 10_000, 100) for letter in "abc"]
    (note,) = CUT_NOTE.finditer(truncate_middle("".join(parts), 20))
    assert int(note[1]) == 30_000 - 20
    cut = truncate_middle("".join(parts), 300)
    counts = [int(note[1]) for note in CUT_NOTE.finditer(cut)]
    assert counts == [9900, 30_000 - 2 * 9900 - len(CUT_NOTE.sub("", cut)), 9900]


@given(chunks=st.lists(st.binary(max_size=50), max_size=40), limit=st.integers(2, 20))
def test_output_buffer_truncates_like_a_text(chunks: list[bytes], limit: int) -> None:
    buffer = OutputBuffer(keep=4 * limit)
    for chunk in chunks:
        buffer.add(chunk)
    whole = b"".join(chunks)
    assert buffer.total == len(whole)
    assert len(buffer.head) + len(buffer.tail) <= 12 * limit + 50
    text, characters = buffer.text(limit), whole.decode("utf-8", "replace")
    if len(whole) <= 4 * limit:
        assert text == truncate_middle(characters, limit)
    assert len(text) <= limit + 60
    note = CUT_NOTE.search(text)
    assert note is None or int(note[1]) == len(characters) - limit


def test_shorten_keeps_within_the_limit() -> None:
    assert (shorten("abcdef", 6), shorten("abcdefg", 6)) == ("abcdef", "abc...")


def test_first_line_skips_blank_lines_and_names_empty_errors() -> None:
    assert first_line("\n  one \ntwo") == "one" and first_line(ValueError()) == "ValueError" and first_line("") == ""
