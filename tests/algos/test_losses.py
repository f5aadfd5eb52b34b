"""The policy losses by value and gradient, case by case and by what holds for all of them."""

import math
from dataclasses import replace
from random import Random

import pytest
import torch
from choices_for_tests import choose
from hypothesis import given
from hypothesis import strategies as st
from losses_for_tests import Tokens, inputs, inputs_of, picked, run, select, token_batches
from torch import Tensor

from turnwise.algos.loss_types import RATIO_LEVELS, Loss, LossInputs, LossResult, RatioLevel, SelectingLoss, unit_ids
from turnwise.algos.losses import LOSSES, Cispo, GeoMean, Gspo, Ppo, Reinforce, Sapo, Vespo

STORED_DATA = ("awr", "dpo")
"""Losses for stored episodes, which have their own tests."""
every_loss = pytest.mark.parametrize("name", LOSSES)


def one(loss: Loss, ratio: float, advantage: float) -> tuple[LossResult, float]:
    """The result for one token of this ratio, and the gradient of its loss by its log-probability."""
    result, gradient = run(loss, inputs([math.log(ratio)], [advantage]))
    return result, gradient.item()


@pytest.mark.parametrize("kind", [Ppo, Gspo])
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped", "bounded"),
    [
        (1.0, 2.0, -2.0, -2.0, 0, 0),
        (1.1, 2.0, -2.2, -2.2, 0, 0),
        (1.5, 2.0, -2.56, 0.0, 1, 0),  # above 1 + clip_high: no more to gain
        (0.5, 2.0, -1.0, -1.0, 0, 0),  # a good token became rarer: full gradient
        (0.5, -2.0, 1.6, 0.0, 1, 0),  # below 1 - clip_low: no more to gain
        (1.5, -2.0, 3.0, 3.0, 0, 0),  # a bad token became likelier: full gradient
        (3.5, -2.0, 6.0, 0.0, 0, 1),  # dual clip
        (3.5, 2.0, -2.56, 0.0, 1, 0),
    ],
)
def test_clipped_losses_match_hand_computed_values(
    kind: type[Ppo], ratio: float, advantage: float, loss: float, gradient: float, clipped: int, bounded: int
) -> None:
    result, got = one(kind(clip_low=0.2, clip_high=0.28, dual_clip=3.0), ratio, advantage)
    assert result.token_loss.item() == pytest.approx(loss)
    assert got == pytest.approx(gradient)
    assert result.metrics["clip_fraction"].item() == clipped
    assert result.metrics["clip_fraction_low"].item() == bounded
    assert result.metrics["ratio"].item() == pytest.approx(ratio)
    assert result.metrics["approx_kl"].item() == pytest.approx(-math.log(ratio))


def test_loss_is_unbounded_without_dual_clip() -> None:
    result, gradient = one(Ppo(dual_clip=None), 3.5, -2.0)
    assert result.token_loss.item() == pytest.approx(7.0)
    assert gradient == pytest.approx(7.0)
    assert result.metrics["clip_fraction_low"].item() == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight", "clipped"),
    [(1.0, 2.0, 1.0, 0), (1.5, 2.0, 1.28, 1), (0.5, 2.0, 0.8, 1), (1.5, -2.0, 1.28, 1), (0.9, -2.0, 0.9, 0)],
)
def test_cispo_weighs_the_policy_gradient_by_the_clipped_ratio(
    ratio: float, advantage: float, weight: float, clipped: int
) -> None:
    result, gradient = one(Cispo(clip_low=0.2, clip_high=0.28), ratio, advantage)
    assert result.token_loss.item() == pytest.approx(-weight * advantage * (math.log(ratio) - 1))
    assert gradient == pytest.approx(-weight * advantage), "every token keeps a gradient"
    assert result.metrics["clip_fraction"].item() == clipped


@pytest.mark.parametrize(("advantage", "tau"), [(2.0, 1.0), (-2.0, 1.05)])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_sapo_fades_on_both_sides_of_ratio_one(ratio: float, advantage: float, tau: float) -> None:
    result, gradient = one(Sapo(), ratio, advantage)
    gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
    assert result.token_loss.item() == pytest.approx(-advantage * gate * 4 / tau)
    assert gradient == pytest.approx(-advantage * 4 * gate * (1 - gate) * ratio)


def test_geo_mean_clips_log_ratios_by_the_advantages_sign() -> None:
    """Two segments: a good one, where only the upper clip binds, and a bad one, where only the lower does."""
    given = inputs([0.5, -0.5, 0.5, -0.5], [2.0, 2.0, -1.0, -1.0], segments=[0, 0, 1, 1])
    result, gradient = run(GeoMean(clip_low=0.2, clip_high=0.28), given)
    good, bad = math.exp((0.28 - 0.5) / 2), math.exp((0.5 - 0.2) / 2)
    assert result.token_loss.tolist() == pytest.approx([-2 * good, -2 * good, bad, bad])
    assert gradient.tolist() == pytest.approx([0.0, -2 * good, bad, 0.0])  # two tokens, each half of two losses
    assert result.metrics["clip_fraction"].tolist() == [1, 1, 0, 0]  # outside the bounds, whether the clip binds or not
    assert result.metrics["clip_fraction_low"].tolist() == [0, 0, 1, 1]
    assert result.metrics["ratio"].tolist() == pytest.approx([good, good, bad, bad])


def phi(log_w: float, k: float, decay: float) -> float:
    return math.exp(decay + k * log_w - decay * math.exp(log_w))


def test_vespo_weights_the_gradient_by_the_sequence_ratio() -> None:
    """Two segments whose token ratios multiply to exp(0.2) and exp(0.45); k and lambda by the sign of A."""
    advantages = [2.0, -1.0, 0.0, 1.0, -3.0]
    result, gradient = run(Vespo(), inputs(LOG_RATIOS, advantages, SEGMENTS, TURNS))
    log_w = [sum(LOG_RATIOS[:3])] * 3 + [sum(LOG_RATIOS[3:])] * 2
    weights = [phi(w, *((2.0, 3.0) if a >= 0 else (3.0, 2.0))) for w, a in zip(log_w, advantages, strict=True)]
    expected = [-weight * advantage for weight, advantage in zip(weights, advantages, strict=True)]
    assert gradient.tolist() == pytest.approx(expected), "no gradient through the weight"
    logprobs = [each - 1.0 for each in LOG_RATIOS]
    assert result.token_loss.tolist() == pytest.approx([e * p for e, p in zip(expected, logprobs, strict=True)])
    assert result.metrics["vespo_weight"].tolist() == pytest.approx(weights)


def test_vespo_weight_is_one_on_policy_and_vanishes_far_from_it() -> None:
    for log_ratio, weight in ((0.0, 1.0), (math.log(2 / 3), phi(math.log(2 / 3), 2.0, 3.0)), (4.0, 0.0), (-15.0, 0.0)):
        result, _ = run(Vespo(), inputs([log_ratio], [1.0]))
        assert result.metrics["vespo_weight"].item() == pytest.approx(weight, abs=1e-6)


def test_reinforce_is_the_log_likelihood_times_the_advantage() -> None:
    result, gradient = one(Reinforce(), 3.0, -2.0)
    assert result.token_loss.item() == pytest.approx(2 * (math.log(3.0) - 1))
    assert gradient == pytest.approx(2.0)


LOG_RATIOS = [0.1, 0.3, -0.2, 0.05, 0.4]
SEGMENTS = [0, 0, 0, 1, 1]
TURNS = [0, 0, 1, 1, 2]  # the second segment is a later context of the same episode


@pytest.mark.parametrize(
    ("level", "means"),
    [
        ("token", LOG_RATIOS),
        ("turn", [0.2, 0.2, -0.2, 0.05, 0.4]),  # turn 1 has tokens in both segments: two units
        ("sequence", [0.2 / 3] * 3 + [0.225] * 2),
    ],
)
def test_gspo_takes_one_ratio_per_token_turn_or_sequence(level: RatioLevel, means: list[float]) -> None:
    wide = Gspo(clip_low=0.9, clip_high=9.0, dual_clip=None, level=level)
    advantages = [1.0, -2.0, 3.0, -4.0, 5.0]
    result, gradient = run(wide, inputs(LOG_RATIOS, advantages, SEGMENTS, TURNS))
    expected = [-advantage * math.exp(mean) for advantage, mean in zip(advantages, means, strict=True)]
    assert result.token_loss.tolist() == pytest.approx(expected)
    assert gradient.tolist() == pytest.approx(expected), "through the token alone, with its own advantage"
    assert result.metrics["approx_kl"].tolist() == pytest.approx([-each for each in LOG_RATIOS])


def test_gspo_clips_whole_units() -> None:
    tight = Gspo(clip_low=0.05, clip_high=0.05, dual_clip=None, level="turn")
    result, gradient = run(tight, inputs(LOG_RATIOS, [1.0] * 5, SEGMENTS, TURNS))
    assert result.metrics["clip_fraction"].tolist() == [1, 1, 0, 1, 1]
    assert (gradient != 0).tolist() == [False, False, True, False, False]


def test_unit_ids_rejects_an_unknown_level() -> None:
    with pytest.raises(ValueError, match=r'Unknown ratio level "episode"; expected one of token, turn, sequence'):
        unit_ids(torch.zeros(3), torch.zeros(3), "episode")  # type: ignore[arg-type]


@given(token_batches())
def test_gspo_is_ppo_per_token_and_for_sequences_of_one_token(tokens: Tokens) -> None:
    count = len(tokens.segments)
    alone = replace(tokens, segments=list(range(count)))
    ppo, gradient = run(Ppo(), inputs_of(tokens))
    for case, level in ((tokens, "token"), (alone, "sequence"), (alone, "turn")):
        got, got_gradient = run(Gspo(level=level), inputs_of(case))  # type: ignore[arg-type]
        torch.testing.assert_close(got.token_loss, ppo.token_loss)
        torch.testing.assert_close(got_gradient, gradient)


@given(token_batches())
def test_gspo_per_turn_is_per_sequence_where_segments_have_one_turn(tokens: Tokens) -> None:
    given = inputs_of(replace(tokens, turns=[3] * len(tokens.turns)))
    per_turn, _ = run(Gspo(level="turn"), given)
    per_sequence, _ = run(Gspo(level="sequence"), given)
    torch.testing.assert_close(per_turn.token_loss, per_sequence.token_loss)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in STORED_DATA])
@given(token_batches())
def test_every_loss_has_the_policy_gradient_on_policy(name: str, tokens: Tokens) -> None:
    """Advantages as group estimators give them, one a segment: geo_mean spreads a token's over its segment."""
    advantages = [tokens.advantages[segment] for segment in tokens.segments]
    on_policy = replace(tokens, log_ratios=[0.0] * len(advantages), advantages=advantages)
    _, gradient = run(LOSSES[name](), inputs_of(on_policy))
    torch.testing.assert_close(gradient, -torch.tensor(advantages, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "level"),
    [(name, "sequence") for name in LOSSES if name != "gspo"] + [("gspo", level) for level in RATIO_LEVELS],
)
@given(tokens=token_batches(), random=st.randoms(use_true_random=False))
def test_losses_are_independent_of_order_and_micro_batches(
    name: str, level: RatioLevel, tokens: Tokens, random: Random
) -> None:
    loss = choose(LOSSES, name, level=level, share=0.4, low=-0.1)
    given = select(loss, inputs_of(tokens))
    whole, gradient = run(loss, given)
    everyone = list(range(len(tokens.segments)))
    random.shuffle(everyone)
    cut = random.randint(0, 3)
    for part in (everyone, [i for i in everyone if tokens.segments[i] < cut]):
        chosen = torch.tensor(part, dtype=torch.int64)
        got, got_gradient = run(loss, picked(given, chosen))
        torch.testing.assert_close(got.token_loss, whole.token_loss[chosen])
        torch.testing.assert_close(got_gradient, gradient[chosen])
        for metric, values in got.metrics.items():
            torch.testing.assert_close(values, whole.metrics[metric][chosen])


@pytest.mark.parametrize(
    "name", [name for name, loss in LOSSES.items() if not issubclass(loss, SelectingLoss) and name not in STORED_DATA]
)
@given(token_batches())
def test_flipping_all_advantages_of_an_unclipped_loss_flips_it(name: str, tokens: Tokens) -> None:
    clip = {"clip_low": 99.0 if name == "geo_mean" else 1.0, "clip_high": 99.0, "dual_clip": None}
    alike = {"tau_negative": 1.0, "k_negative": 2.0, "lambda_negative": 3.0}
    loss = choose(LOSSES, name, **clip, **alike)
    flipped = replace(tokens, advantages=[-advantage for advantage in tokens.advantages])
    result, _ = run(loss, inputs_of(tokens))
    torch.testing.assert_close(run(loss, inputs_of(flipped))[0].token_loss, -result.token_loss)


@every_loss
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_losses_stay_finite_for_extreme_ratios(name: str, advantage: float) -> None:
    given = inputs([300.0, -300.0], [advantage] * 2, segments=[0, 1], old=-300.0)
    result, gradient = run(choose(LOSSES, name, dual_clip=None), given)
    assert result.token_loss.isfinite().all() and gradient.isfinite().all()
    assert result.metrics["approx_kl"].tolist() == [-20, 20]


@every_loss
def test_loss_metrics_are_per_token_without_gradient(name: str) -> None:
    metrics = run(LOSSES[name](), inputs([0.1, 0.2], [1.0, -1.0]))[0].metrics
    assert {"ratio", "approx_kl"} <= metrics.keys()
    for values in metrics.values():
        assert values.shape == (2,) and values.dtype == torch.float64 and not values.requires_grad


def test_losses_reject_different_shapes() -> None:
    def given(tokens: Tensor) -> LossInputs:
        ids = torch.zeros(3, dtype=torch.int64)
        zeros = torch.zeros(3)
        return LossInputs(
            policy_logprobs=zeros,
            old_logprobs=zeros,
            sampler_logprobs=tokens,
            advantages=zeros,
            segment_ids=ids,
            turn_ids=ids,
        )

    assert given(torch.zeros(3))
    with pytest.raises(ValueError, match="same shape"):
        given(torch.zeros(3, 1))
