import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from contexts_for_tests import Played, Talk, play, renderer_of, summary
from turnwise.concurrency.blocking import allow_interrupts
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.messages import Message, system, user
from turnwise.core.trajectory import Group, Status, Stop
from turnwise.evaluation.episodes import Evaluation
from turnwise.record.metrics import rollout_metrics
from turnwise.rewards.scoring import score_trajectory
from turnwise.rollout.context_modes import HOOK_CHARS, SUMMARY_PROMPT

STEPS = Talk(
    opening=(system("Rules."), user("Find it.")),
    answers=tuple((user(f"room {number}"),) for number in range(1, 6)),
    said=("a0", "a1", "<think>well</think> in short, 1", "a2", "a3", "in short, 2", "a4"),
)


def summed(talk: Talk = STEPS, bounds: dict[str, float] | None = None, **settings: Any) -> Played:
    renderer = renderer_of("tiny")
    return play(talk, summary(renderer, **settings), renderer, **(bounds or {}))


def texts(played: Played) -> list[str]:
    return [renderer_of("tiny").decode(context) for context in played.witness.contexts]


def test_summary_replaces_the_history() -> None:
    contexts = texts(summed(turns=2))
    assert contexts[2] == (
        "<|system|>Rules.<|end|><|user|>Find it.<|end|><|assistant|>a0<|end|>"
        f"<|user|>room 1<|end|><|assistant|>a1<|end|><|user|>{SUMMARY_PROMPT}<|end|><|assistant|>"
    )
    assert contexts[3] == (
        "<|system|>Rules.<|end|><|user|>Summary of the turns so far:\nin short, 1\n\nroom 2<|end|><|assistant|>"
    )
    assert contexts[6].endswith("<|user|>Summary of the turns so far:\nin short, 2\n\nroom 4<|end|><|assistant|>")
    assert "in short, 1" in contexts[5] and "in short, 1" not in contexts[6]


def test_summary_turn_is_trained_but_not_sent_to_the_environment() -> None:
    played = summed(turns=2)
    turns = played.trajectory.turns
    assert [turn.is_summary for turn in turns] == [False, False, True, False, False, True, False]
    assert [turn.extends for turn in turns] == [False, True, True, False, True, True, False]
    assert [turn.reward for turn in turns] == [1.0, 2.0, 0.0, 3.0, 4.0, 0.0, 5.0]
    assert [message.content for message in played.env.heard] == ["a0", "a1", "a2", "a3", "a4"]
    assert turns[2].info == {"summary": True} and not turns[2].invalid
    assert [len(segment.turns) for segment in played.trajectory.segments()] == [3, 3, 1]


def test_metrics_do_not_count_summaries_as_turns() -> None:
    scored = score_trajectory(summed(turns=2).trajectory, format_penalty=0.5)
    assert scored.total_reward == 15.0
    metrics = rollout_metrics([Group(task=scored.task, trajectories=(scored,))])
    assert metrics["rollout/turns"] == 5.0
    assert metrics["rollout/sampled_tokens"] == scored.num_sampled
    assert Evaluation(trajectories=(scored,), dropped=0).metrics()["turns"] == 5.0


def test_summary_threshold_counts_the_observation() -> None:
    plain = summed(tokens=10_000)
    assert not any(turn.is_summary for turn in plain.trajectory.turns)
    second = len(plain.witness.contexts[1])
    assert [turn.is_summary for turn in summed(tokens=second).trajectory.turns][:2] == [False, True]
    assert [turn.is_summary for turn in summed(tokens=second + 1).trajectory.turns][:3] == [False, False, True]


def test_summary_is_never_followed_by_another_summary() -> None:
    summaries = [turn.is_summary for turn in summed(tokens=1).trajectory.turns]
    assert summaries == [False, True] * 4 + [False]


def test_summary_budget_is_bounded_by_the_remaining_context() -> None:
    long = Talk(opening=STEPS.opening, answers=STEPS.answers, said=("x" * 500,))
    played = summed(long, {"max_new_tokens": 10}, turns=2, max_tokens=7)
    assert played.witness.budgets == [10, 10, 7, 10, 10, 7, 10]
    assert [len(turn.action_ids) for turn in played.trajectory.turns] == played.witness.budgets
    assert played.trajectory.turns[2].stop is Stop.LENGTH
    asked = len(played.witness.contexts[2])
    tight = summed(long, {"max_new_tokens": 10, "max_tokens": asked + 3}, turns=2, max_tokens=7)
    assert tight.witness.budgets[:3] == [10, 10, 3]
    none = summed(long, {"max_new_tokens": 10, "max_tokens": asked}, turns=2, max_tokens=7)
    assert none.trajectory.status is Status.TRUNCATED_TOKENS
    assert [turn.is_summary for turn in none.trajectory.turns] == [False, False]


def test_empty_summary_is_shown_as_a_note() -> None:
    assert (
        "so far:\nnone\n\nroom 1"
        in texts(summed(Talk(opening=STEPS.opening, answers=STEPS.answers, said=(" ",)), turns=1))[2]
    )


def test_summary_hook_gets_the_episode_up_to_the_last_action() -> None:
    given: list[list[str]] = []

    def write(messages: Sequence[Message]) -> str:
        given.append([message.content for message in messages])
        return "noted"

    played = summed(Talk(opening=STEPS.opening, answers=STEPS.answers, said=("a0", "a1", "a2")), turns=2, writer=write)
    assert given == [
        ["Rules.", "Find it.", "a0", "room 1", "a1"],
        ["Rules.", "Find it.", "a0", "room 1", "a1", "room 2", "a2", "room 3", "a0"],
    ]
    assert not any(turn.is_summary for turn in played.trajectory.turns)
    assert texts(played)[2].endswith("so far:\nnoted\n\nroom 2<|end|><|assistant|>")
    assert [turn.extends for turn in played.trajectory.turns] == [False, True, False, True, False]


def test_summary_hook_may_be_async_and_its_text_is_bounded() -> None:
    async def write(messages: Sequence[Message]) -> str:
        await asyncio.sleep(0)
        return "z" * (HOOK_CHARS + 5)

    context = texts(summed(turns=4, writer=write, bounds={"max_tokens": 2 * HOOK_CHARS}))[4]
    assert context.count("z") == HOOK_CHARS


def test_failing_summary_hook_is_an_infrastructure_failure() -> None:
    def fails(messages: Sequence[Message]) -> str:
        raise ValueError("no connection")

    with pytest.raises(InfrastructureFailure, match="summary hook: ValueError: no connection"):
        summed(turns=1, writer=fails)
    with pytest.raises(UserError, match="must return a str, not int"):
        summed(turns=1, writer=lambda messages: 3)  # type: ignore[arg-type, return-value]


def test_hanging_summary_hook_is_an_infrastructure_failure() -> None:
    async def hangs(messages: Sequence[Message]) -> str:
        await asyncio.Event().wait()
        return ""

    expected = r"^Timed out after rollout\.timeout_s 0\.5 s, waiting for the summary hook"
    with pytest.raises(InfrastructureFailure, match=expected):
        summed(turns=1, writer=hangs, bounds={"timeout_s": 0.5})


def test_blocking_summary_hook_is_an_infrastructure_failure() -> None:
    def blocks(messages: Sequence[Message]) -> str:
        time.sleep(60)
        return ""

    expected = r"^the summary hook ran for .* without a pause, at test_context_summary\.py:\d+\. .* rollout\.timeout_s"
    with pytest.raises(InfrastructureFailure, match=expected), allow_interrupts():
        summed(turns=1, writer=blocks, bounds={"timeout_s": 0.5})
