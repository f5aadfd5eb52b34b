"""The simulator: cases with a closed form, and rules that hold for every layout."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.cluster.simulate import (
    Amount,
    EngineRates,
    Layout,
    LearnerRates,
    Prediction,
    Workload,
    simulate,
)

ONE_EPISODE = Workload(
    groups=1,
    group_size=1,
    turns=Amount(median=1),
    prompt_tokens=0,
    action_tokens=Amount(median=100),
    observation_tokens=Amount(median=0),
    tool_s=Amount(median=0),
)
LAYOUT = Layout(engines=1, learners=1, colocated=False, slots=64, in_flight=1000, max_staleness=0)
TEN_PER_SECOND = EngineRates(tokens_per_s={1: 10.0})
"""Tokens/s of the batch, whatever its size: 100 tokens take 10 s."""


def run(
    work: Workload = ONE_EPISODE, engine: EngineRates = TEN_PER_SECOND, learner_s: float = 10.0, **layout
) -> Prediction:
    transfer_s = layout.pop("transfer_s", 0.0)
    rates = LearnerRates(seconds_per_token=0.0, seconds_per_step=learner_s, transfer_s=transfer_s)
    return simulate(work, engine, rates, dataclasses.replace(LAYOUT, **layout))


def test_synchronous_step_is_rollout_plus_update_plus_transfer() -> None:
    found = run(learner_s=5.0, transfer_s=2.0)
    assert found.step_s == pytest.approx(10 + 5 + 2)
    assert found.engine_idle == pytest.approx(7 / 17)
    assert found.learner_idle == pytest.approx(12 / 17)
    assert (found.staleness, found.staleness_max) == (0.0, 0)


def test_asynchronous_step_is_the_longer_of_two_equal_stages() -> None:
    found = run(max_staleness=1)
    assert found.step_s == pytest.approx(10)
    assert found.engine_idle == pytest.approx(0) and found.learner_idle == pytest.approx(0)
    assert found.staleness_max == 1


@pytest.mark.parametrize(("learner_s", "step_s"), [(4.0, 10.0), (25.0, 25.0)])
def test_asynchronous_step_takes_as_long_as_its_slower_stage(learner_s: float, step_s: float) -> None:
    found = run(learner_s=learner_s, max_staleness=1)
    assert found.step_s == pytest.approx(step_s)
    assert found.engine_idle == pytest.approx(1 - 10 / step_s)
    assert found.learner_idle == pytest.approx(1 - learner_s / step_s)


def test_engines_pause_while_weights_are_transferred() -> None:
    found = run(learner_s=2.0, transfer_s=5.0, max_staleness=1)
    assert found.step_s == pytest.approx(15)
    assert found.engine_idle == pytest.approx(1 / 3)


def test_colocated_engines_sleep_during_updates() -> None:
    found = run(max_staleness=1, colocated=True)
    assert found.step_s == pytest.approx(20)
    assert found.engine_idle == pytest.approx(0.5)


def test_replica_divides_its_rate_among_running_turns() -> None:
    work = dataclasses.replace(ONE_EPISODE, groups=4)
    engine = EngineRates(tokens_per_s={1: 10.0, 4: 20.0})
    assert run(work, engine).step_s == pytest.approx(400 / 20 + 10)
    assert run(work, engine, engines=4).step_s == pytest.approx(100 / 10 + 10)
    assert run(work, engine, slots=1).step_s == pytest.approx(400 / 10 + 10)
    assert run(work, engine, in_flight=1).step_s == pytest.approx(400 / 10 + 10)


def test_engine_rates_interpolate_between_batch_sizes() -> None:
    engine = EngineRates(tokens_per_s={8: 80.0, 4: 60.0})
    assert [engine.total(running) for running in (1, 2, 4, 6, 8, 100)] == [15.0, 30.0, 60.0, 70.0, 80.0, 80.0]


def test_prefill_stops_sampling_of_the_replica() -> None:
    work = dataclasses.replace(ONE_EPISODE, prompt_tokens=30, observation_tokens=Amount(median=20))
    engine = EngineRates(tokens_per_s={1: 10.0}, prefill_tokens_per_s=50.0)
    assert run(work, engine).step_s == pytest.approx(50 / 50 + 10 + 10)
    many = dataclasses.replace(work, groups=3)
    assert run(many, engine).step_s == pytest.approx(3 * (1 + 10) + 10)


def test_tools_delay_the_episode_and_leave_the_engine_idle() -> None:
    work = dataclasses.replace(ONE_EPISODE, turns=Amount(median=3), tool_s=Amount(median=4.0))
    found = run(work)
    assert found.step_s == pytest.approx(3 * (10 + 4) + 10)
    assert found.engine_idle == pytest.approx(1 - 30 / 52)


def test_learner_ranks_divide_the_tokens() -> None:
    work = dataclasses.replace(ONE_EPISODE, prompt_tokens=60)
    for ranks in (1, 4):
        rates = LearnerRates(seconds_per_token=0.1, seconds_per_step=1.0)
        found = simulate(work, TEN_PER_SECOND, rates, dataclasses.replace(LAYOUT, learners=ranks))
        assert found.step_s == pytest.approx(10 + 1 + 16 / ranks)
        assert found.tokens_per_s == pytest.approx(160 / found.step_s)


def test_earlier_steps_go_first() -> None:
    """With room for one episode, the next step's episodes wait until this step's are complete."""
    work = dataclasses.replace(ONE_EPISODE, groups=2)
    assert run(work, learner_s=1.0, max_staleness=3, in_flight=1).staleness_max <= 1
    waiting = run(work, learner_s=1.0, max_staleness=3, slots=1)
    assert waiting.step_s == pytest.approx(20), "steps are complete one after the other, also in the replica's queue"


def test_equal_seeds_give_equal_predictions() -> None:
    work = dataclasses.replace(ONE_EPISODE, groups=8, tool_s=Amount(median=1.0, sigma=1.0))
    rates = LearnerRates(seconds_per_token=0.001)
    first, again, other = (simulate(work, TEN_PER_SECOND, rates, LAYOUT, seed=seed) for seed in (3, 3, 4))
    assert first == again != other


def test_amount_is_log_normal_with_a_maximum() -> None:
    work = dataclasses.replace(ONE_EPISODE, action_tokens=Amount(median=100, sigma=2.0, maximum=100))
    assert run(work).step_s <= 20 + 1e-9
    assert run(dataclasses.replace(ONE_EPISODE, action_tokens=Amount(median=100, sigma=2.0))).step_s != pytest.approx(
        20
    )


layouts = st.builds(
    Layout,
    engines=st.integers(1, 4),
    learners=st.integers(1, 4),
    colocated=st.booleans(),
    slots=st.integers(1, 8),
    in_flight=st.integers(1, 20),
    max_staleness=st.integers(0, 3),
)


@settings(max_examples=40, deadline=None)
@given(layout=layouts, learner_s=st.sampled_from([0.0, 0.5, 5.0]), seed=st.integers(0, 100))
def test_every_layout_conserves_episodes_and_bounds_staleness(layout: Layout, learner_s: float, seed: int) -> None:
    work = Workload(
        groups=3,
        group_size=2,
        turns=Amount(median=2, sigma=0.5, maximum=6),
        prompt_tokens=10,
        action_tokens=Amount(median=20, sigma=0.5),
        observation_tokens=Amount(median=5),
        tool_s=Amount(median=0.5, sigma=1.0),
    )
    engine = EngineRates(tokens_per_s={1: 20.0, 4: 40.0}, prefill_tokens_per_s=500.0)
    learner = LearnerRates(seconds_per_token=0.001, seconds_per_step=learner_s, transfer_s=0.1)
    found = simulate(work, engine, learner, layout, steps=3, seed=seed)
    assert found.episodes == 3 * work.episodes
    assert 0 <= found.staleness <= found.staleness_max <= layout.max_staleness
    assert -1e-9 <= found.engine_idle <= 1 and -1e-9 <= found.learner_idle <= 1
    assert math.isfinite(found.step_s) and found.step_s >= learner_s
