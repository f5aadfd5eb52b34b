"""Vision towers of the Qwen family: what transformers computes, in fewer calls."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForImageTextToText
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import load_model
from turnwise.models.vision.encoder import image_encoder
from turnwise.models.vision.patches import PatchCutter
from turnwise.models.vision.processor import decode_image
from turnwise.models.vision.tower import batched_attention, sequence_lengths
from vision_models_for_tests import png, write_vision_model

SIZES = ((48, 32), (64, 64), (48, 32), (32, 48), (48, 32))


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_images_of_equal_size_share_calls_and_keep_their_features(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_vision_model(name, tmp_path / name)
    model = load_model(str(folder), attn_implementation=ATTENTION).model
    encoder = image_encoder(model)
    assert encoder is not None
    keys = [encoder.processor.store.put(png(*size, seed=number)) for number, size in enumerate(SIZES)]
    own = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="sdpa").eval()
    calls = count_attention(monkeypatch)
    with torch.no_grad():
        expected = encoder._encode(own.base_model, keys)
        theirs, calls[:] = len(calls), []
        found = encoder._encode(model.base_model, keys)
    for ours, other in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, other, atol=1e-5, rtol=1e-4)
    assert len(calls) < theirs
    if name == "qwen2_vl":  # it has no windows: one call per layer and length, of 24 and of 64 patches here
        assert len(calls) == 2 * model.config.vision_config.depth


@pytest.mark.parametrize(("lengths", "copies"), [((4, 4, 4), False), ((4, 3, 5), True)])
def test_sequences_of_one_length_are_attended_without_copies(
    lengths: tuple[int, ...], copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, key, value = torch.randn(3, 1, 2, 12, 4)
    parts = zip(*(each.split(lengths, dim=2) for each in (query, key, value)), strict=True)
    expected = torch.cat([F.scaled_dot_product_attention(*part, scale=0.5) for part in parts], dim=2).transpose(1, 2)
    copied, plain = list[int](), torch.cat
    monkeypatch.setattr(torch, "cat", lambda parts, **options: copied.append(1) or plain(parts, **options))
    ends = torch.tensor([0, *lengths]).cumsum(0)
    found, _ = batched_attention(torch.nn.Identity(), query, key, value, None, scaling=0.5, cu_seq_lens_q=ends)
    torch.testing.assert_close(found, expected)
    assert bool(copied) == copies
    ends.zero_()  # layers after the first do not read it again
    assert sequence_lengths(ends) == list(lengths)


def test_patches_take_their_values_from_a_processor_of_either_backend() -> None:
    """A model that is loaded has its processor on torchvision if that is installed. Here: one with other values."""
    processor_class = type("Qwen2VLImageProcessor", (Qwen2VLImageProcessorPil,), {})
    processor = processor_class(patch_size=4, merge_size=2, min_pixels=64, max_pixels=4096, image_mean=[0.1, 0.2, 0.3])
    image = decode_image(png(24, 16))
    cutter = PatchCutter.for_processor(processor)
    assert cutter is not None
    found = cutter.cut(image)
    assert found is not None and found["pixel_values"].dtype == torch.uint8
    assert torch.equal(cutter.expand(found["pixel_values"]), processor([image], return_tensors="pt")["pixel_values"])


def test_patches_are_refused_for_a_processor_that_does_more() -> None:
    class Qwen2VLImageProcessor(Qwen2VLImageProcessorPil):
        def __call__(self, *args: Any, **options: Any) -> Any:
            found = super().__call__(*args, **options)
            found["pixel_values"][0, 0] += 1
            return found

    assert PatchCutter.for_processor(Qwen2VLImageProcessor(patch_size=4, min_pixels=64)) is None
    assert PatchCutter.for_processor(Qwen2VLImageProcessorPil(patch_size=4, min_pixels=64, do_normalize=False)) is None


def count_attention(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows with every call of scaled_dot_product_attention."""
    calls: list[None] = []
    plain = F.scaled_dot_product_attention

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        return plain(*arguments, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    return calls
