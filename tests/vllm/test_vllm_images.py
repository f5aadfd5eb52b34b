"""Images in vLLM: the learner's log-probabilities, over several turns and after a publication."""

import asyncio
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from turnwise.core.samples import Sample
from turnwise.engine.vllm.images import LAYOUTS
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.vision.encoder import vision_names
from vision_models_for_tests import write_vision_model
from visual_talks_for_tests import assert_agrees_with_the_learner, play_all, renderer_of
from vllm_engines_for_tests import build_engine


@torch.no_grad()
def change_weights(loaded: LoadedModel) -> LoadedModel:
    """Return another model with all weights changed. Without the mask, it would sample tokens of images."""
    model = copy.deepcopy(loaded.model)
    for parameter in model.parameters():
        parameter.mul_(1.2)
    never = model.get_output_embeddings().never_sampled
    model.get_output_embeddings().weight[never] *= 50
    return replace(loaded, model=model)


@torch.no_grad()
def change_language(model: Any) -> None:
    """Change all weights but those of the vision tower, which is frozen and not published again."""
    frozen = vision_names(model)
    assert frozen
    for name, parameter in model.named_parameters():
        if name not in frozen:
            parameter.mul_(0.8)


@pytest.mark.parametrize("name", LAYOUTS)
def test_vllm_and_learner_agree_with_images(name: str, tmp_path: Path) -> None:
    loaded = load_model(str(write_vision_model(name, tmp_path / name)), attn_implementation=ATTENTION)
    renderer = renderer_of(loaded)
    engine = build_engine(loaded.model, renderer)
    changed = change_weights(loaded)

    async def scenario() -> list[list[tuple[Sample, list[float]]]]:
        before = await play_all(engine, renderer)
        assert_agrees_with_the_learner(loaded, before)
        await engine.publish(1, changed.model)
        after = await play_all(engine, renderer)
        assert_agrees_with_the_learner(changed, after)
        frozen_part = engine._publisher.latest.frozen_part  # type: ignore[union-attr]
        change_language(changed.model)
        await engine.publish(2, changed.model)
        assert engine._publisher.latest.frozen_part == frozen_part  # type: ignore[union-attr]
        assert_agrees_with_the_learner(changed, await play_all(engine, renderer))
        return [before, after]

    before, after = asyncio.run(scenario())
    assert before[0][1] != before[2][1]  # the members see different first images
    never = set(loaded.model.get_output_embeddings().never_sampled.tolist())
    assert never and not any(never & set(sample.ids[sample.mask].tolist()) for sample, _ in [*before, *after])
