"""Statistics over a whole optimizer step do not depend on micro-batches or idle samples."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from episodes_for_tests import group_of, turn_of
from learners_for_tests import estimate_of, gradients, learn, make_learner, random_groups, settings_of
from models_for_tests import random_model
from turnwise.algos.loss_types import SelectingLoss
from turnwise.algos.losses import ClipCov
from turnwise.algos.off_policy import Veto
from turnwise.config.schema import Config
from turnwise.core.learner import Needs, Scores
from turnwise.core.samples import Batch, TrainSample
from turnwise.core.trajectory import Group
from turnwise.data.samples import build_samples
from turnwise.run.build_learner import build_coefficients, estimate_settings, update_settings
from turnwise.training import update
from turnwise.training.estimators.on_policy import estimate
from turnwise.training.update import add_step_statistics, train_samples


@pytest.fixture(autouse=True)
def band(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covariances and ratios of these few tokens are small: with the paper's bounds none would be selected."""
    monkeypatch.setattr(Veto, "lowest", 0.45)
    set_band(monkeypatch, -0.2, 0.5)


def set_band(monkeypatch: pytest.MonkeyPatch, low: float, high: float) -> None:
    monkeypatch.setattr(ClipCov, "low", low)
    monkeypatch.setattr(ClipCov, "high", high)


METHODS: dict[str, dict[str, Any]] = {
    "clip_cov": {"algo__loss": "clip_cov", "algo__loss__share": 0.3},
    "kl_cov": {"algo__loss": "kl_cov", "algo__loss__share": 0.3},
    "vespo": {"algo__loss": "vespo"},
    "normalised": {
        "algo__correction": "truncated",
        "algo__correction__normalise": True,
        "algo__correction__bounds": (0.0, 1.5),
    },
    "normalised sequences": {
        "algo__correction": "truncated",
        "algo__correction__normalise": True,
        "algo__correction__level": "sequence",
    },
    "rejection": {
        "algo__rejection": "sequence",
        "algo__rejection__statistic": "k3",
        "algo__rejection__bounds": (0.0, 0.25),
    },
    "veto": {"algo__rejection": "veto"},
}
"""By settings at which each changes the gradient of random groups."""


def config_of(name: str, **others: Any) -> Config:
    plain = {"algo__advantage": "dr_grpo", "algo__kl_coef": 0.0, "algo__entropy_coef": 0.0}
    return settings_of(**{"algo__old_logprobs": "learner", **plain, **METHODS.get(name, {}), **others})


class Old:
    """A learner that has moved since the old log-probabilities were scored, as in a second mini-batch."""

    def __init__(self, config: Config) -> None:
        self.learner = make_learner(config, moved=0.02)
        self._scored = make_learner(config)

    def estimate(self, groups: Sequence[Group], config: Config) -> Any:
        return estimate_of(groups, self._scored, config)


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, atol=2e-5 * tensor.abs().max().item(), rtol=1e-4, msg=name)


def gradient_of(
    name: str,
    groups: list[Group],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Tensor]:
    """The policy's gradient of one optimiser step of a learner that has moved since the old log-probabilities."""
    config = config_of(name, **(settings or {}))
    old = Old(config)
    monkeypatch.setattr("learners_for_tests.estimate_of", lambda groups, _, config: old.estimate(groups, config))
    return gradients(old.learner, groups, config, **changes)


@pytest.mark.parametrize("name", METHODS)
def test_micro_batches_do_not_change_the_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = random_groups()
    whole = gradient_of(name, groups, monkeypatch, micro_tokens=10**6)
    assert_equal(gradient_of(name, groups, monkeypatch, micro_tokens=1), whole)
    plain = gradient_of("plain", groups, monkeypatch)
    with pytest.raises(AssertionError):
        assert_equal(plain, whole)


@pytest.mark.parametrize("name", METHODS)
def test_idle_samples_count_in_step_statistics(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left out of the forward passes of the update, not out of means and shares."""
    idle = group_of([[turn_of([3] * 10, [4, 5, 6], extends=False)] for _ in range(3)], 9)
    groups = [*random_groups(), idle]
    config = config_of(name)
    skips = update_settings(config.algo, config.critic, config.train, config.seed).skip_idle
    assert skips == (name != "kl_cov"), "its penalty reaches tokens without an advantage"
    everything = gradient_of(name, groups, monkeypatch, skip_idle=False)
    assert_equal(gradient_of(name, groups, monkeypatch, skip_idle=skips), everything)


def moved_model() -> Any:
    """The policy of `Old.learner` with plain attention."""
    model, generator = random_model("llama", "eager"), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model


def plain_tokens(groups: list[Group], moved: Any) -> list[dict[str, Any]]:
    """Every sampled token, by plain forward passes: new (with a gradient) and old log-probability, advantage."""
    scored, tokens = random_model("llama", "eager"), []
    for number, group in enumerate(groups):
        mean = sum(each.total_reward for each in group.trajectories) / len(group.trajectories)
        samples = build_samples(group.trajectories)
        for segment, sample in enumerate(samples):
            places = sample.mask.nonzero()[:, 0]
            new, old = (
                (model(sample.ids[None]).logits[0, places - 1] / sample.temperatures[places, None])
                .log_softmax(-1)
                .gather(1, sample.ids[places, None])[:, 0]
                for model in (moved, scored)
            )
            advantage = group.trajectories[sample.trajectory].total_reward - mean
            tokens += [
                {
                    "new": new[index],
                    "old": old[index].item(),
                    "sampler": sample.sampler_logprobs[place].item(),
                    "advantage": advantage,
                    "sequence": (number, segment),
                }
                for index, place in enumerate(places)
            ]
    return tokens


def covariances(tokens: list[dict[str, Any]]) -> list[float]:
    mean_a = sum(each["advantage"] for each in tokens) / len(tokens)
    mean_p = sum(each["new"].item() for each in tokens) / len(tokens)
    return [(each["advantage"] - mean_a) * (each["new"].item() - mean_p) for each in tokens]


def ppo_loss(token: dict[str, Any]) -> Tensor:
    ratio, advantage = (token["new"] - token["old"]).exp(), token["advantage"]
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)


def clip_cov_loss(tokens: list[dict[str, Any]]) -> list[Tensor]:
    """With a share of 1: all tokens of the band are dropped."""

    def clipped(token: dict[str, Any]) -> bool:
        ratio, advantage = math.exp(token["new"].item() - token["old"]), token["advantage"]
        return (advantage > 0 and ratio > 1.28) or (advantage < 0 and ratio < 0.8)

    dropped = [-0.2 < cov < 0.5 and not clipped(each) for each, cov in zip(tokens, covariances(tokens), strict=True)]
    assert 0 < sum(dropped) < len(tokens) and any(map(clipped, tokens))
    return [0.0 * ppo_loss(each) if drop else ppo_loss(each) for each, drop in zip(tokens, dropped, strict=True)]


def kl_cov_loss(tokens: list[dict[str, Any]]) -> list[Tensor]:
    covariance = covariances(tokens)
    top = sorted(range(len(tokens)), key=lambda index: -covariance[index])[: int(0.3 * len(tokens))]
    losses = [-each["advantage"] * (each["new"] - each["old"]).exp() for each in tokens]
    return [
        loss + ((each["new"] - each["old"]).abs() if index in top else 0.0)
        for index, (each, loss) in enumerate(zip(tokens, losses, strict=True))
    ]


def vespo_loss(tokens: list[dict[str, Any]]) -> list[Tensor]:
    losses = []
    for each in tokens:
        own = [other for other in tokens if other["sequence"] == each["sequence"]]
        log_w = sum(other["new"].item() - other["old"] for other in own)
        k, decay = (2.0, 3.0) if each["advantage"] >= 0 else (3.0, 2.0)
        losses.append(-math.exp(decay + k * log_w - decay * math.exp(log_w)) * each["advantage"] * each["new"])
    return losses


def normalised_loss(tokens: list[dict[str, Any]]) -> list[Tensor]:
    weights = [min(1.5, math.exp(each["old"] - each["sampler"])) for each in tokens]
    mean = sum(weights) / len(weights)
    return [weight / mean * ppo_loss(each) for weight, each in zip(weights, tokens, strict=True)]


def rejecting_loss(tokens: list[dict[str, Any]]) -> list[Tensor]:
    losses, rejected = [], 0
    for each in tokens:
        own = [other["old"] - other["sampler"] for other in tokens if other["sequence"] == each["sequence"]]
        drop = sum(math.exp(d) - 1 - d for d in own) / len(own) > 0.25
        losses.append(0.0 * ppo_loss(each) if drop else ppo_loss(each))
        rejected += drop
    assert 0 < rejected < len(tokens)
    return losses


FORMULAS = {
    "clip_cov": clip_cov_loss,
    "kl_cov": kl_cov_loss,
    "vespo": vespo_loss,
    "normalised": normalised_loss,
    "rejection": rejecting_loss,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_step_gradient_is_the_formula_over_all_tokens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token on plain forward passes, with means and shares over the whole step; micro-batches of one."""
    groups, model = random_groups(), moved_model()
    losses = FORMULAS[name](plain_tokens(groups, model))
    (sum(losses) / len(losses)).backward()
    expected = {f"policy.{parameter}": each.grad for parameter, each in model.named_parameters()}
    share = {"algo__loss__share": 1.0} if name == "clip_cov" else {}
    assert_equal(gradient_of(name, groups, monkeypatch, share, micro_tokens=1), expected)


def selected_in(seed: tuple[object, ...], micro_tokens: int = 100, **settings: Any) -> list[list[bool]]:
    config = config_of("clip_cov", **settings)
    old, groups = Old(config), random_groups(groups=3)
    samples = train_samples(
        old.estimate(groups, config),
        set(range(9)),
        update_settings(config.algo, config.critic, config.train, config.seed),
    )
    found = add_step_statistics(
        samples,
        old.learner,
        update_settings(config.algo, config.critic, config.train, config.seed).objective,
        micro_tokens,
        seed,
    )
    return [each.selected.tolist() for each in found if each.selected is not None]


def test_random_choices_depend_on_their_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    set_band(monkeypatch, -9.0, 9.0)
    first = selected_in(("selected_tokens", 0, 1, 0))
    torch.manual_seed(99)
    assert selected_in(("selected_tokens", 0, 1, 0), micro_tokens=1) == first
    assert selected_in(("selected_tokens", 0, 2, 0)) != first
    tokens = sum(each.num_sampled for group in random_groups(groups=3) for each in group.trajectories)
    assert sum(map(sum, first)) == int(0.3 * tokens)


def test_update_randomness_depends_on_seed_step_and_mini_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def record(samples: list[TrainSample], *given: Any) -> list[TrainSample]:
        seeds.append(given[-1])
        return add_step_statistics(samples, *given)

    monkeypatch.setattr(update, "add_step_statistics", record)
    config = config_of("clip_cov", train__mini_batch=3)
    for step in (4, 5):
        learn(make_learner(config), random_groups(), config, step=step, run_seed=7)
    assert seeds == [("selected_tokens", 7, step, number) for step in (4, 5) for number in (0, 1)]


@pytest.mark.parametrize("name", ["clip_cov", "normalised"])
def test_step_statistics_ignore_untrained_tokens(name: str) -> None:
    """Every third token has weight 0 and an absurd advantage and sampler: nothing changes for the others."""
    config = config_of(name)
    settings, learner, old = (
        update_settings(config.algo, config.critic, config.train, config.seed),
        make_learner(config, moved=0.02),
        Old(config),
    )
    samples = train_samples(old.estimate(random_groups(), config), set(range(6)), settings)
    weights = [torch.where(torch.arange(len(each)) % 3 == 0, 0.0, each.weights) for each in samples]
    samples = [replace(each, weights=own) for each, own in zip(samples, weights, strict=True)]
    absurd = [
        replace(
            each,
            advantages=torch.where(each.weights == 0, 50.0, each.advantages),
            sample=replace(
                each.sample, sampler_logprobs=torch.where(each.weights == 0, -30.0, each.sample.sampler_logprobs)
            ),
        )
        for each in samples
    ]
    ours, theirs = (
        add_step_statistics(each, learner, settings.objective, 100, ("seed",)) for each in (samples, absurd)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.correction_scale == other.correction_scale
        if one.selected is not None and other.selected is not None:
            assert torch.equal(one.selected, other.selected)
            assert not one.selected[one.weights == 0].any()
    assert ours[0].correction_scale != 1.0 or any(each.selected is not None for each in ours)


def test_update_without_step_statistics_does_not_score() -> None:
    class Unasked:
        def score(self, batches: Sequence[Batch], needs: Needs) -> list[Scores]:
            raise AssertionError("nobody asked for it")

    for name in ("plain", "vespo", "rejection", "normalised"):
        config = config_of(name)
        settings = update_settings(config.algo, config.critic, config.train, config.seed)
        samples = train_samples(Old(config).estimate(random_groups(), config), set(range(6)), settings)
        found = add_step_statistics(samples, Unasked(), settings.objective, 100, ("seed",))  # type: ignore[arg-type]
        assert [each.selected for each in found] == [None] * len(samples)
        assert all((each.correction_scale != 1.0) == (name == "normalised") for each in found)
        assert not isinstance(config.algo.loss, SelectingLoss)


class ByToken:
    """A critic that values a token by its id, whatever came before."""

    ranks = 1

    def score(self, batches: Sequence[Batch], needs: Needs) -> list[Scores]:
        return [Scores(values=batch.targets / 10, end_values=torch.zeros(len(batch.order))) for batch in batches]


@pytest.mark.parametrize(("advantage", "anchor"), [("step_gae", 0), ("turn_gae", -1)])
@pytest.mark.parametrize("extends", [True, False], ids=["concatenated", "a row a turn"])
def test_turns_in_separate_contexts_bootstrap_from_the_next(advantage: str, anchor: int, extends: bool) -> None:
    config = settings_of(
        "trunk",
        algo__advantage=advantage,
        algo__advantage__gamma_turn=0.9,
        algo__advantage__lam_turn=0.5,
        algo__advantage__whiten=False,
        algo__kl_coef=0.0,
    )
    actions, rewards = ([4, 5], [6], [7, 8, 9]), (0.5, 0.0, 2.0)
    turns = [
        turn_of([3] * 10, action, extends=extends and number > 0, reward=reward)
        for number, (action, reward) in enumerate(zip(actions, rewards, strict=True))
    ]
    values = [action[anchor] / 10 for action in actions]
    expected, following, carried = [0.0] * 3, 0.0, 0.0
    for turn in (2, 1, 0):
        carried = rewards[turn] + 0.9 * following - values[turn] + 0.9 * 0.5 * carried
        expected[turn], following = carried, values[turn]
    found = estimate(
        [group_of([turns])], ByToken(), estimate_settings(config.algo, config.reward), build_coefficients(config.algo)
    )  # type: ignore[arg-type]
    assert found is not None and len(found.samples) == (1 if extends else 3)
    got = torch.cat([each[sample.mask] for each, sample in zip(found.advantages, found.samples, strict=True)])
    assert got.tolist() == pytest.approx(
        [own for own, action in zip(expected, actions, strict=True) for _ in action], rel=1e-5
    )
