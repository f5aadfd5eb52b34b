"""Published weights: frozen parameters are copied once, so that the features of images stay valid."""

import asyncio
from dataclasses import replace

import pytest
import torch

from turnwise.models.layers import copy_model
from turnwise.models.weights import WeightCopier, copy_parameters
from visual_policies_for_tests import (
    FROZEN_TOWERS,
    IMAGES,
    POLICIES,
    FeatureCount,
    change_trained,
    equal_parameters,
    policy_of,
)
from visual_talks_for_tests import engine_of, renderer_of


@pytest.mark.parametrize("kind", POLICIES)
def test_features_are_computed_again_only_if_the_tower_changes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = policy_of(kind)
    learner, sampler = loaded.model, copy_model(loaded.model).requires_grad_(False)
    engine = engine_of(replace(loaded, model=sampler), renderer_of(loaded))
    features = FeatureCount(sampler, monkeypatch)

    def publish(version: int) -> int:
        """Publish the learner's weights; return how many features the engine then computes."""
        asyncio.run(engine.publish(version, learner))
        assert equal_parameters(learner, sampler)
        return features.count(learner)

    assert publish(0) == len(IMAGES)
    complete = sum(each.nbytes for each in learner.parameters())
    trained = sum(each.nbytes for each in learner.parameters() if each.requires_grad)
    assert engine.stats().published_bytes == complete
    for version in (1, 2):
        change_trained(learner)
        assert publish(version) == (0 if kind in FROZEN_TOWERS else len(IMAGES))
        assert engine.stats().published_bytes == complete + version * trained
    copy_parameters(learner, policy_of(kind, seed=1).model)  # a checkpoint
    assert publish(3) == len(IMAGES)
    asyncio.run(engine.publish(4, policy_of(kind, seed=2).model))  # an earlier policy, as an opponent
    assert publish(5) == len(IMAGES)


def test_frozen_tensors_are_recognised_as_objects() -> None:
    """Not by their address, which the next one gets."""
    own = torch.nn.Linear(4, 4)
    copier = WeightCopier(own)
    for number in range(20):
        source = torch.nn.Linear(4, 4).requires_grad_(False)
        torch.nn.init.constant_(source.weight, number)
        copier.copy(source)
        assert equal_parameters(own, source)
        del source


def test_frozen_parameter_that_was_overwritten_is_copied_again() -> None:
    own, source = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).requires_grad_(False)
    copier = WeightCopier(own)
    copier.copy(source)
    torch.nn.init.zeros_(own.weight)
    copier.copy(source)
    assert equal_parameters(own, source)


def test_weights_with_other_names_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in names"):
        WeightCopier(torch.nn.Linear(4, 4)).copy(torch.nn.Linear(4, 4, bias=False))


def test_weights_that_an_engine_shares_are_not_copied() -> None:
    loaded = policy_of(next(iter(POLICIES)))
    engine = engine_of(loaded, renderer_of(loaded))
    asyncio.run(engine.publish(1, loaded.model))
    assert engine.stats().published_bytes == 0
