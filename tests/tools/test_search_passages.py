"""Reading documents, splitting them into passages, and cleaning their text."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.tools.search import documents
from turnwise.tools.search.documents import SkippedFiles, find_files, hash_files, read_passages, split_text
from turnwise.tools.search.html_text import read_html
from turnwise.tools.search.types import clean_text

PAGE = """<html><head><title>The page</title><style>p {}</style></head><body><nav>menu</nav>
<div role="main"><h1>Fruit<a>¶</a></h1><p>An <b>ap</b>ple a day &amp; more.</p><script>steal()</script>
<h2>Pears</h2><ul><li>green</li><li>yellow</li></ul></div><div>imprint</div></body></html>"""


def read(file: Path, text: str, limit: int = 800) -> list[tuple[str, str]]:
    file.write_text(text)
    return [(passage.title, passage.text) for passage in read_passages(file, limit)]


def test_html_sections_are_read_without_menus(tmp_path: Path) -> None:
    assert read(tmp_path / "page.html", PAGE) == [
        ("The page > Fruit", "An apple a day & more."),
        ("The page > Pears", "green\n\nyellow"),
    ]


def test_html_without_main_part_is_read_in_full() -> None:
    title, sections = read_html("<p>one<h2>Two</h2>three<p>four")
    assert title == "" and [(heading, text.split()) for heading, text in sections] == [
        ("", ["one"]),
        ("Two", ["three", "four"]),
    ]


@given(st.text(alphabet="<>/ahbp1title scrm=\"'&;!-", max_size=200))
def test_read_html_accepts_any_text(page: str) -> None:
    title, sections = read_html(page)
    assert isinstance(title, str) and all(text.strip() for _, text in sections)


def test_html_unclosed_heading_hides_nothing() -> None:
    _, sections = read_html("<h1>Head<p>body</p><h2>last")
    assert sections == [("Head", "\n\nbody\n\n")]
    assert read_html("<title>only")[1] == [] or read_html("<title>only")[0] == "only"


def test_markdown_is_split_at_headings_outside_code(tmp_path: Path) -> None:
    text = "# Book\nintro\n## One\nfirst\n```\n# no heading\n```\n## Two ##\nsecond"
    assert read(tmp_path / "book.md", text) == [
        ("Book", "intro"),
        ("Book > One", "first\n```\n# no heading\n```"),
        ("Book > Two", "second"),
    ]


def test_jsonl_rows_keep_title_and_id(tmp_path: Path) -> None:
    rows = [{"text": "x", "title": "T", "id": 7}, {"text": "y"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = list(read_passages(tmp_path / "rows.jsonl", 800))
    assert [(each.title, each.id, each.text) for each in found] == [("T", "7", "x"), ("rows", "rows.jsonl#2", "y")]
    assert read(tmp_path / "notes.txt", "hello") == [("notes", "hello")]


@given(
    text=st.text(alphabet=st.sampled_from("ab .\n,"), max_size=400) | st.text(max_size=300),
    limit=st.integers(min_value=10, max_value=60),
)
def test_split_text_loses_only_white_space(text: str, limit: int) -> None:
    pieces = list(split_text(text, limit))
    assert all(0 < len(piece) <= limit for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_split_text_joins_paragraphs_and_cuts_at_sentences() -> None:
    assert list(split_text("one\n\ntwo\n\n" + "x" * 30, 12)) == ["one\n\ntwo", "x" * 12, "x" * 12, "x" * 6]
    assert list(split_text("First sentence. Second one here", 20)) == ["First sentence.", "Second one here"]


def test_split_text_takes_linear_time(tmp_path: Path) -> None:
    (tmp_path / "huge.txt").write_text("word " * 400_000)
    passages = list(read_passages(tmp_path / "huge.txt", 800))
    assert sum(len(each.text.split()) for each in passages) == 400_000


@given(st.text(), st.sampled_from(["<|end|>", "<|user|>", "<tool_call>", "\x1b[2J", "\ud800", "\x00"]))
def test_clean_text_can_be_tokenized(text: str, hostile: str) -> None:
    cleaned = clean_text(text + hostile)
    cleaned.encode("utf-8")
    assert not set(cleaned) & {"\x00", "\x1b", "\u2028", "\r"} and clean_text(cleaned) == cleaned
    ids = TOKENIZER.encode(cleaned, add_special_tokens=False, split_special_tokens=True)
    assert not set(ids) & set(TOKENIZER.all_special_ids)


TOKENIZER = tiny_tokenizer()


def test_find_files_is_sorted_and_unique(tmp_path: Path) -> None:
    for name in ("b/two.txt", "a/one.md", "c.jsonl", "c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = [file.relative_to(tmp_path).as_posix() for file in find_files([tmp_path, tmp_path / "c.jsonl"])]
    assert names == ["a/one.md", "b/two.txt", "c.jsonl"]


def test_hash_files_depends_on_contents(tmp_path: Path) -> None:
    one, two = tmp_path / "1.txt", tmp_path / "2.txt"
    one.write_text("a")
    two.write_text("b")
    first = hash_files([one, two])
    assert first == hash_files([one, two]) != hash_files([two, one])
    two.write_text("c")
    assert hash_files([one, two]) != first


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("x.jsonl", "{bad", "line 1 is not valid JSON"),
        ("x.jsonl", '{"text": "a"}\n{"title": "b"}', "line 2 has no text"),
        ("x.jsonl", "[" * 100_000, "line 1 is not valid JSON"),
        ("x.pdf", "", "not one of .txt, .md"),
        ("missing.txt", None, "missing.txt does not exist"),
    ],
)
def test_unreadable_file_is_a_user_error(tmp_path: Path, name: str, text: str | None, line: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=line) as caught:
        for file in find_files([tmp_path / name]):
            list(read_passages(file, 800))
    assert "\n" not in str(caught.value)


def test_oversized_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_FILE_BYTES", 10)
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 10)
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_text("x" * 11)
        with pytest.raises(UserError, match=r"larger|longer"):
            list(read_passages(tmp_path / name, 800))


def test_skipped_files_are_summarized(tmp_path: Path) -> None:
    for name, content in {
        "a.txt": b"an owl",
        "latin.txt": "caf\xe9 ol\xe9".encode("latin-1"),
        "empty.md": b" \n",
        "none.jsonl": b"\n",
        "1.pdf": b"%PDF",
        "2.pdf": b"%PDF",
        "sub/3.docx": b"PK",
        "sub/4\x1b.bin": b"",
        ".git/config": b"[core]",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    skipped = SkippedFiles()
    passages = [each for file in find_files([tmp_path], skipped) for each in read_passages(file, 800, skipped)]
    assert [passage.text for passage in passages] == ["an owl", "caf\ufffd ol\ufffd"]
    assert skipped.summary() == (
        "skipped 4 files (1.pdf, 2.pdf, 3.docx, ...): not .txt, .md, .html, .htm, .jsonl"
        "; skipped 2 files (empty.md, none.jsonl): no text"
        "; read in part 1 file (latin.txt): not UTF-8, convert to UTF-8"
    )
    assert SkippedFiles().summary() == ""
    assert "4?.bin" in SkippedFiles(unsupported=skipped.unsupported[-1:]).summary()


def test_links_and_special_files_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.txt").write_text("a secret")
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (docs / "a.txt").write_text("an owl")
    (docs / "sub" / "same.txt").symlink_to(docs / "a.txt")
    (docs / "sub" / "out.txt").symlink_to("../../elsewhere/secret.txt")
    (docs / "folder").symlink_to(tmp_path / "elsewhere")
    (docs / "nothing.txt").symlink_to("missing.txt")
    (docs / "round.txt").symlink_to("round.txt")
    os.mkfifo(docs / "pipe.txt")
    (tmp_path / "by another name").symlink_to(docs)
    for folder in (docs, tmp_path / "by another name"):
        skipped = SkippedFiles()
        assert [file.name for file in find_files([folder], skipped)] == ["a.txt", "same.txt"]
        outside = "links out of the folder, give the target's own path"
        assert skipped.summary() == (
            f"skipped 2 files (folder, out.txt): {outside}; "
            "skipped 3 files (nothing.txt, pipe.txt, round.txt): not regular files"
        )
    assert find_files([docs / "sub" / "out.txt"]), "a link that was named is meant"


def test_line_endings_are_normalized(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"one\r\ntwo\r\rthree\n")
    assert [each.text for each in read_passages(tmp_path / "x.txt", 800)] == ["one\ntwo\n\nthree"]
