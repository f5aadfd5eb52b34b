"""Properties of every context mode."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contexts_for_tests import MODES, TEMPLATE_NAMES, Played, Talk, play, renderer_of, talks
from episodes_for_tests import limits, task_of
from learners_for_tests import logprobs_of, settings_of
from turnwise.core.messages import system, user
from turnwise.core.samples import Sample
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.samples import build_samples
from turnwise.engine.native.engine import NativeEngine
from turnwise.envs.registry import load_spec
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.tiny import tiny_model
from turnwise.record.trajectories import trajectory_from_row
from turnwise.rollout.collect import Collector
from turnwise.run.build_learner import build_learner
from turnwise.training.step_record import trajectory_rows
from turnwise.training.update import Estimate

LONG = Talk(
    opening=(system("Play."), user("Begin.")),
    answers=tuple((user(f"You are at {place}."),) for place in range(8)),
    said=("Left", "<think>hm</think><answer>Up</answer>", "so far so good"),
)


def prefix_of(sample: Sample, turn: int) -> list[int]:
    """What stands before a turn's first sampled token, where that token is trained."""
    return sample.ids[: int((sample.turn_ids == turn).nonzero()[0])].tolist()


def assert_exact(played: Played) -> None:
    """Every sampled token is trained once, with its own log-probability, on the ids that it was sampled in."""
    trajectory, witness = played.trajectory, played.witness
    assert [turn.action_ids for turn in trajectory.turns] == witness.said
    samples = build_samples([trajectory])
    assert sum(int(sample.mask.sum()) for sample in samples) == trajectory.num_sampled == sum(map(len, witness.said))
    trained = [token for sample in samples for token in sample.ids[sample.mask].tolist()]
    assert trained == [token for said in witness.said for token in said]
    assert torch.cat([sample.sampler_logprobs[sample.mask] for sample in samples]).tolist() == [
        -float(number) for number in range(len(trained))
    ]
    home = {turn: sample for sample in samples for turn in set(sample.turn_ids.tolist()) - {-1}}
    assert [prefix_of(home[turn], turn) for turn in range(len(trajectory.turns))] == witness.contexts


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25)
@given(talk=talks())
def test_every_sampled_token_is_trained_once_on_the_ids_it_was_sampled_in(mode: str, talk: Talk) -> None:
    renderer = renderer_of("tiny")
    played = play(talk, MODES[mode](renderer), renderer)
    assert_exact(played)
    assert played.trajectory.num_turns == len(talk.answers) == len(played.env.heard)


@pytest.mark.parametrize("template", TEMPLATE_NAMES)
@settings(max_examples=12)
@given(talk=talks(), mode=st.sampled_from(sorted(MODES)))
def test_every_sampled_token_is_trained_once_with_every_template(template: str, talk: Talk, mode: str) -> None:
    renderer = renderer_of(template)
    assert_exact(play(talk, MODES[mode](renderer), renderer))


@settings(max_examples=100)
@given(
    mode=st.sampled_from(sorted(MODES)),
    max_tokens=st.integers(20, 250),
    max_new_tokens=st.integers(1, 30),
    cut=st.booleans(),
)
def test_no_turn_exceeds_the_context_limit_in_any_mode(
    mode: str, max_tokens: int, max_new_tokens: int, cut: bool
) -> None:
    """The budget of a turn follows the context that the model sees, not the one that the episode would have made."""
    renderer = renderer_of("tiny")
    talk = Talk(opening=LONG.opening, answers=LONG.answers, said=LONG.said, cut=cut)
    played = play(talk, MODES[mode](renderer), renderer, max_tokens=max_tokens, max_new_tokens=max_new_tokens)
    if played.trajectory.turns:
        assert_exact(played)
    for turn, context, budget in zip(
        played.trajectory.turns, played.witness.contexts, played.witness.budgets, strict=True
    ):
        most = 32 if turn.is_summary else max_new_tokens
        assert budget == min(most, max_tokens - len(context)) >= 1


def test_context_modes_create_the_documented_segments() -> None:
    renderer = renderer_of("tiny")
    lengths = {
        mode: [len(segment.turns) for segment in play(LONG, make(renderer), renderer).trajectory.segments()]
        for mode, make in MODES.items()
    }
    assert lengths["full"] == [8]
    assert lengths["window 0"] == lengths["turn"] == [1] * 8
    assert lengths["window 1"] == [2, *[1] * 6]
    assert lengths["window 2"] == [3, *[1] * 5]
    assert lengths["summary every turn"] == [2] * 7 + [1]
    assert lengths["summary by a hook"] == [2] * 4


def test_restarted_context_begins_with_the_rules_and_repeats_nothing() -> None:
    renderer = renderer_of("tiny")
    for mode, make in MODES.items():
        played = play(LONG, make(renderer), renderer)
        for context in played.witness.contexts:
            text = renderer.decode(context)
            assert text.startswith("<|system|>Play.") and text.count("Play.") == 1, mode
            assert text.endswith("<|assistant|>") and "<|assistant|><|" not in text, mode
            assert all(text.count(f"at {place}.") <= 1 for place in range(8)), mode


def collected(mode: str) -> tuple[list[Trajectory], torch.nn.Module]:
    """A few episodes on the lake, played by untrained tiny through the engine that training uses."""
    model = tiny_model()
    model.set_attn_implementation(ATTENTION)
    renderer = renderer_of("tiny")
    engine = NativeEngine(model, slots=4, stop_ids=renderer.stop_ids, decode=renderer.decode)
    collector = Collector(
        policy=engine,
        make_env=load_spec("frozen_lake").make,
        context=MODES[mode](renderer),
        limits=limits(max_new_tokens=6),
        in_flight=4,
        attempts=1,
        run_seed=0,
    )
    tasks = [task_of("frozen_lake", index, size=4, max_turns=7) for index in range(2)]
    found = asyncio.run(collector.collect(tasks, group_size=2, round=0))
    return [trajectory for group in found.groups for trajectory in group.trajectories], model


@pytest.mark.parametrize("mode", MODES)
def test_learner_reproduces_the_samplers_logprobs_in_every_mode(mode: str) -> None:
    trajectories, model = collected(mode)
    assert any(not turn.extends for each in trajectories for turn in each.turns[1:]) == (mode != "full")
    config = settings_of()
    learner = build_learner(config.algo, config.critic, config.train, model)
    sampler = [sample.sampler_logprobs[sample.mask] for sample in build_samples(trajectories)]
    torch.testing.assert_close(torch.cat(logprobs_of(learner, trajectories)), torch.cat(sampler), atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_trajectory_row_round_trip_keeps_advantages_per_turn(mode: str) -> None:
    renderer = renderer_of("tiny")
    trajectory = play(LONG, MODES[mode](renderer), renderer).trajectory
    samples = build_samples([trajectory])
    estimated = SimpleNamespace(
        trajectories=[trajectory],
        samples=samples,
        advantages=[sample.turn_ids.float() for sample in samples],
        loss_masks=[sample.turn_ids[sample.mask] % 2 == 0 for sample in samples],
    )
    group = Group(task=trajectory.task, trajectories=(trajectory,))
    (row,) = trajectory_rows(1, [group], cast(Estimate, estimated), renderer.decode)
    assert trajectory_from_row(json.loads(json.dumps(row))) == trajectory
    turns = cast(list[dict[str, Any]], row["turns"])
    assert [turn["advantages"] for turn in turns] == [
        [float(number)] * len(turn.action_ids) for number, turn in enumerate(trajectory.turns)
    ]
    assert [turn["loss_mask"] for turn in turns] == [
        [int(number % 2 == 0)] * len(turn.action_ids) for number, turn in enumerate(trajectory.turns)
    ]
    assert {turn["entropies"] for turn in turns} == {None}
