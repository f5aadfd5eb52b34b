"""Search indexes: BM25 ranking, atomic builds, and errors for damaged folders."""

import json
import math
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_for_tests import ROWS, make_index, titles, write_rows

from processes_for_tests import forked_with_output
from turnwise.core.errors import UserError
from turnwise.tools.search import indexing
from turnwise.tools.search.index import fuse_rankings, index_in_memory, open_index
from turnwise.tools.search.indexing import build_index
from turnwise.tools.search.lexical import LexicalIndex, query_terms, tokenize, top_scores
from turnwise.tools.search.storage import MANIFEST, read_manifest
from turnwise.tools.search.types import Passage


def test_index_finds_its_passages(tmp_path: Path) -> None:
    index = open_index(make_index(tmp_path))
    river, owl, nothing, empty = index.search(["river fish", "OWL", "zebra", "  "], 3)
    assert titles(river) == ["Otter", "Bridge"] and titles(owl) == ["Owl"] and nothing == empty == []
    assert river[0].passage == Passage(title="Otter", text=ROWS[0]["text"], id="a1")
    assert river[0].score > river[1].score > 0


def test_top_limits_results_without_reordering(tmp_path: Path) -> None:
    index = open_index(make_index(tmp_path))
    assert titles(index.search(["the river"], 1)[0]) == titles(index.search(["the river"], 4)[0])[:1]


def test_query_of_stop_words_only_uses_them() -> None:
    assert query_terms("What is the river?") == ["river"]
    assert query_terms("to be or to be") == ["to", "be", "or"]
    assert tokenize("read_text(self, x1)") == ["read", "text", "self", "x1"]


TEXTS = st.lists(
    st.lists(st.sampled_from(["ape", "bee", "cat", "dog", "eel"]), min_size=1, max_size=6).map(" ".join),
    min_size=2,
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(texts=TEXTS, query=st.lists(st.sampled_from(["ape", "bee", "cat", "fox"]), min_size=1, max_size=3))
def test_lexical_scores_are_lucene_bm25(texts: list[str], query: list[str]) -> None:
    top = len(texts)
    found = dict(LexicalIndex.build(texts).retrieve([" ".join(query)], top)[0])
    lengths = [len(text.split()) for text in texts]
    mean = sum(lengths) / len(lengths)
    for number, text in enumerate(texts):
        counts, score = Counter(text.split()), 0.0
        for word in set(query):
            having = sum(word in other.split() for other in texts)
            if counts[word]:
                idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
                score += idf * counts[word] / (counts[word] + 1.5 * (0.25 + 0.75 * lengths[number] / mean))
        assert found.get(number, 0.0) == pytest.approx(score, rel=1e-4)


@given(
    scores=st.lists(st.integers(min_value=0, max_value=4), min_size=1, max_size=30),
    top=st.integers(min_value=1, max_value=12),
)
def test_top_scores_are_highest_with_ties_in_order(scores: list[int], top: int) -> None:
    expected = sorted(enumerate(scores), key=lambda each: (-each[1], each[0]))
    array = np.array(scores, dtype=np.float32)
    assert top_scores(array, top) == expected[:top]
    assert top_scores(array, top, above=0.0) == [each for each in expected if each[1] > 0][:top]


def test_fuse_rankings_adds_reciprocal_ranks() -> None:
    fused = fuse_rankings([[(7, 9.0), (3, 8.0)], [(3, 0.2), (5, 0.1)]], 3)
    assert [passage for passage, _ in fused] == [3, 7, 5]
    assert fused[0][1] == pytest.approx(1 / 62 + 1 / 61) and fused[2][1] == pytest.approx(1 / 62)


def test_index_in_memory_ranks_like_one_on_disk(tmp_path: Path) -> None:
    index = open_index(make_index(tmp_path))
    passages = [index.passages[number] for number in range(len(index.passages))]
    assert index_in_memory(passages).search(["river water"], 4) == index.search(["river water"], 4)


def test_manifest_describes_index(tmp_path: Path) -> None:
    folder = make_index(tmp_path)
    manifest = read_manifest(folder)
    assert (manifest.passages, manifest.files, manifest.dense, manifest.passage_characters) == (4, 1, None, 800)
    assert manifest.sizes == {path.name: path.stat().st_size for path in folder.iterdir() if path.name != MANIFEST}
    again = build_index([tmp_path / "rows.jsonl"], tmp_path / "again")
    assert again.digest == manifest.digest
    write_rows(tmp_path / "rows.jsonl", ROWS[:3])
    assert build_index([tmp_path / "rows.jsonl"], tmp_path / "other").digest != manifest.digest


def test_stored_passages_are_read_on_access(tmp_path: Path) -> None:
    index = open_index(make_index(tmp_path, [{"text": f"word{number} " + "x" * 700} for number in range(500)]))
    held = index.passages
    assert len(held) == 500 and held[499].text.startswith("word499")
    assert not any(isinstance(value, list | dict) for value in vars(held).values()), "no passage is kept in memory"
    with pytest.raises(IndexError):
        held[500]


def test_build_index_does_not_overwrite_a_folder(tmp_path: Path) -> None:
    folder = make_index(tmp_path)
    with pytest.raises(UserError, match="exists: choose another folder"):
        build_index([tmp_path / "rows.jsonl"], folder)
    assert open_index(folder).search(["owl"], 1)[0]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def scramble(path: Path) -> None:
    """Damage without a change of size, which only reading detects."""
    path.write_bytes(b"\x00" * path.stat().st_size)


@pytest.mark.parametrize("harm", [cut, scramble, Path.unlink])
@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "passages.jsonl",
        "offsets.npy",
        "vocab.index.json",
        "params.index.json",
        "data.csc.index.npy",
        "indices.csc.index.npy",
        "indptr.csc.index.npy",
    ],
)
def test_damaged_index_is_a_user_error_with_a_fix(tmp_path: Path, name: str, harm) -> None:
    folder = make_index(tmp_path)
    harm(folder / name)
    with pytest.raises(UserError, match=r"damaged|is not a search index") as caught:
        open_index(folder).search(["river"], 3)
    assert "\n" not in str(caught.value) and "build" in str(caught.value)


def test_index_file_of_wrong_size_is_detected(tmp_path: Path) -> None:
    folder = make_index(tmp_path)
    with (folder / "vocab.index.json").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(UserError, match=r"damaged \(vocab\.index\.json is missing or has the wrong size\)"):
        open_index(folder)


def test_index_of_other_version_or_mixed_files_is_refused(tmp_path: Path) -> None:
    folder = make_index(tmp_path)
    manifest = json.loads((folder / MANIFEST).read_text())
    for change, said in (({"version": 99}, "version 99, not 1"), ({"passages": 3}, "has 4 passages, not 3")):
        (folder / MANIFEST).write_text(json.dumps(manifest | change))
        with pytest.raises(UserError, match=said):
            open_index(folder)
    with pytest.raises(UserError, match="nowhere does not exist: build an index"):
        open_index(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no vectors for mode dense"):
        (folder / MANIFEST).write_text(json.dumps(manifest))
        open_index(folder, "dense")


def test_files_without_words_are_a_user_error(tmp_path: Path) -> None:
    for text, said in (("", "no text in"), ("...!", "contain no words")):
        (tmp_path / "_.txt").write_text(text)
        with pytest.raises(UserError, match=said):
            build_index([tmp_path / "_.txt"], tmp_path / "index")
        assert list(tmp_path.iterdir()) == [tmp_path / "_.txt"], "nothing is left behind"


def build_half(rows: Path, folder: Path) -> None:
    """Build an index up to its last file."""

    def wait(*_: object) -> None:
        sys.stdout.write("half\n")
        time.sleep(600)

    indexing.write_manifest = wait
    build_index([rows], folder)


def test_killed_build_leaves_no_index_and_can_be_repeated(tmp_path: Path) -> None:
    rows, folder = write_rows(tmp_path / "rows.jsonl"), tmp_path / "index"
    with forked_with_output(build_half, rows, folder) as (process, lines):
        assert lines.readline() == "half\n"
        process.kill()
    (left,) = [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]
    for path, problem in ((folder, "does not exist"), (left, "is not a search index")):
        with pytest.raises(UserError, match=problem):
            open_index(path)
    build_index([rows], folder)
    assert open_index(folder).search(["owl"], 1)[0]


def test_missing_bm25s_error_includes_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(UserError, match=r"pip install 'turnwise\[search\]'"):
        LexicalIndex.build(["a word"])


def test_query_terms_are_bounded(tmp_path: Path) -> None:
    index = open_index(make_index(tmp_path))
    assert titles(index.search(["owl " * 100_000], 1)[0]) == ["Owl"]
    assert len(query_terms(" ".join(f"w{number}" for number in range(1000)))) == 64
