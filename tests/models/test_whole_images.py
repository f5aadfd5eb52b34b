"""Models in which the tokens of an image attend to all of it."""

import asyncio
from importlib import import_module

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from active_plan_for_tests import check_equal, gradients
from turnwise.core.errors import UserError
from turnwise.core.images import image_token_id
from turnwise.data.packing import pack
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import copy_model
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.vision.whole_images import end_before_image, tokens_ahead
from vision_models_for_tests import write_vision_model
from visual_talks_for_tests import assert_agrees_with_the_learner, engine_of, play_all, renderer_of

KEYS = ("0000000000001", "0000000000002", "0000000000003")
IMAGE_TOKENS = 9


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = write_vision_model("gemma3", tmp_path_factory.mktemp("vision") / "gemma3")
    return load_model(str(folder), attn_implementation=ATTENTION)


def ids_of(parts: list[tuple[int, int]]) -> list[int]:
    """Return ids of texts (0, length) and of images (number, tokens)."""
    return [image_token_id(KEYS[kind - 1], index) if kind else 7 for kind, length in parts for index in range(length)]


PARTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=4)


@given(rows=st.lists(PARTS, min_size=1, max_size=3))
def test_tokens_attend_to_the_end_of_their_image(gemma: LoadedModel, rows: list[list[tuple[int, int]]]) -> None:
    parts = [part for row in rows for part in row]
    expected = [length - 1 - index if kind else 0 for kind, length in parts for index in range(length)]
    found = tokens_ahead(gemma.model, torch.tensor(ids_of(parts)), [len(ids_of(row)) for row in rows])
    assert (found is None) == all(kind == 0 for kind, _ in parts)
    assert found is None or found.tolist() == expected


def test_rows_that_go_on_with_an_image_do_not_see_each_other(gemma: LoadedModel) -> None:
    whole = ids_of([(1, 4)])
    assert tokens_ahead(gemma.model, torch.tensor(whole), [2, 2]).tolist() == [1, 0, 1, 0]  # type: ignore[union-attr]


def test_passes_end_between_images() -> None:
    ids = ids_of([(0, 2), (1, 4), (2, 3), (0, 1)])
    assert [end_before_image(ids, end) for end in range(len(ids) + 1)] == [0, 1, 2, 2, 2, 2, 6, 6, 6, 9, 10]


def test_active_plan_matches_packed_plan_with_images(gemma: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner's attention on a GPU, run on the CPU: log-probabilities and gradients."""
    renderer = renderer_of(gemma)
    played = asyncio.run(play_all(engine_of(gemma, renderer), renderer))
    batch = pack([sample for sample, _ in played])
    assert max(batch.parents) >= 0, "a prompt is shared"
    theirs = gradients(copy_model(gemma.model), batch)
    for name in ("turnwise.models.forward", "turnwise.training.learner"):
        monkeypatch.setattr(import_module(name), "uses_active_plan", lambda _: True)
    check_equal(gradients(copy_model(gemma.model), batch), theirs)


@pytest.mark.parametrize("prefill_tokens", [IMAGE_TOKENS + 1, 30])
def test_images_enter_the_paged_cache_whole(gemma: LoadedModel, prefill_tokens: int) -> None:
    renderer = renderer_of(gemma)
    engine = engine_of(gemma, renderer, paged=True, prefill_tokens=prefill_tokens)
    played = asyncio.run(play_all(engine, renderer))
    assert_agrees_with_the_learner(gemma, played)


def test_image_larger_than_a_pass_is_refused(gemma: LoadedModel) -> None:
    renderer = renderer_of(gemma)
    engine = engine_of(gemma, renderer, paged=True, prefill_tokens=IMAGE_TOKENS - 1)
    with pytest.raises(UserError, match="An image has more than 8 tokens"):
        asyncio.run(play_all(engine, renderer))
