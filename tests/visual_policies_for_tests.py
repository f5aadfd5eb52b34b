"""Small policies that read images, whose vision tower is frozen or trained, and the features that they compute."""

from typing import Any

import pytest
import torch
from torch import Tensor

from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.lora import LoraSettings, add_lora
from turnwise.models.vision.encoder import ImageEncoder, image_encoder
from visual_talks_for_tests import SQUARE, WIDE

POLICIES: dict[str, dict[str, Any]] = {
    "frozen": {},
    "trained": {"train_vision": True},
    "language adapter": {"part": "language"},
    "vision adapter": {"part": "vision"},
}
FROZEN_TOWERS = ("frozen", "language adapter")
IMAGES = (WIDE, SQUARE)


def policy_of(kind: str, seed: int = 0) -> LoadedModel:
    train_vision, part = (POLICIES[kind].get(name) for name in ("train_vision", "part"))
    loaded = load_model("tiny_vlm", attn_implementation=ATTENTION, seed=seed, train_vision=bool(train_vision))
    if part is not None:
        add_lora(loaded.model, "base", LoraSettings(rank=2, alpha=4.0, targets=(), seed=0, part=part))
    return loaded


@torch.no_grad()
def change_trained(model: Any) -> None:
    """Write the trained parameters in a way that torch does not count, as a kernel of an optimizer may."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1


def equal_parameters(one: Any, two: Any) -> bool:
    pairs = list(zip(one.parameters(), two.parameters(), strict=True))
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


@torch.no_grad()
def image_features(model: Any, encoder: ImageEncoder) -> Tensor:
    tokens = [token for image in IMAGES for token in encoder.processor.ids(image) if token < 0]
    return encoder.features(model.base_model, torch.tensor(tokens))


class FeatureCount:
    """Counts the images whose features a model computes, and checks that they are those of another one's tower."""

    def __init__(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        encoder = image_encoder(model)
        assert encoder is not None
        self._model, self._encoder, self._keys = model, encoder, list[str]()
        encode = encoder._encode
        monkeypatch.setattr(encoder, "_encode", lambda trunk, keys: self._keys.extend(keys) or encode(trunk, keys))

    def count(self, other: Any) -> int:
        """Return how many features of `IMAGES` are computed rather than known."""
        self._keys.clear()
        found = image_features(self._model, self._encoder)
        expected = image_features(other, ImageEncoder(self._encoder.processor, self._encoder.merge_size))
        torch.testing.assert_close(found, expected)
        return len(self._keys)
