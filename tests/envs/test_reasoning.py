"""Answer formats that describe and predict states, and their exact rewards."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Task
from turnwise.envs.games.env import GameEnv
from turnwise.envs.picture_env import PictureEnv
from turnwise.envs.reasoning import MAX_SECTION_CHARS, fact_f1, read_section
from turnwise.envs.registry import load_spec

NAMES = ("frozen_lake", "sokoban", "sudoku", "game_2048", "rubiks_cube", "connect_four", "tic_tac_toe")


@pytest.mark.parametrize(
    ("described", "state", "f1"),
    [
        ("a\nb", "a\nb", 1.0),
        ("B.\n  A ", "a\nb", 1.0),
        ("- a\n* b", "a\nb", 1.0),
        ("a", "a\nb", 2 / 3),
        ("a\na\na", "a", 0.5),
        ("a\na", "a\na\nb", 0.8),
        ("c", "a\nb", 0.0),
        ("", "a", 0.0),
        ("", "", 1.0),
    ],
)
def test_fact_f1_counts_facts_in_any_order(described: str, state: str, f1: float) -> None:
    assert fact_f1(described, state) == pytest.approx(f1)


@given(st.text(max_size=200), st.text(max_size=200))
def test_fact_f1_is_symmetric_and_bounded(one: str, other: str) -> None:
    assert 0.0 <= fact_f1(one, other) <= 1.0
    assert fact_f1(one, other) == fact_f1(other, one)
    assert fact_f1(one, one) == 1.0


def test_read_section_takes_the_last_complete_one() -> None:
    text = "<think><observation>no</observation> <observation>yes</observation><observation>open</think>"
    assert read_section(text, "observation") == "yes"
    assert read_section("<think></observation><observation></think>", "observation") is None
    assert read_section(f"<think><observation>a{' ' * MAX_SECTION_CHARS}</observation></think>", "observation") is None


@pytest.mark.parametrize(
    "form",
    [
        "{}<answer>Left</answer>",
        "<think></think>{}<answer>Left</answer>",
        "<think></think><answer>Left</answer>{}",
        "<think></think>{}</think><answer>Left</answer>",
        "<think><reasoning>{}</reasoning></think><answer>Left</answer>",
        "<think></think><answer>Left<think>{}</think></answer>",
    ],
)
def test_sections_outside_the_thinking_are_not_rewarded(form: str) -> None:
    spec = load_spec("frozen_lake")
    runner = spec.make(Task(env="frozen_lake", seed=5, params=spec.check_params({})))
    asyncio.run(runner.start())
    env = runner.env
    assert isinstance(env, PictureEnv)
    said = f"<observation>{env.state_text()}</observation>"
    assert step("frozen_lake", {"reasoning": "grounding"}, form.format(said)).info["rewards"] == {"grounding": 0.0}
    inside = f"<think>{said}</think><answer>Left</answer>"
    assert step("frozen_lake", {"reasoning": "grounding"}, inside).info["rewards"] == {"grounding": 1.0}


def step(name: str, params: dict[str, Any], reply: str | None = None) -> StepResult:
    """Run one turn with this reply; None: the demonstration of a legal action."""

    async def play() -> StepResult:
        spec = load_spec(name)
        runner = spec.make(Task(env=name, seed=5, params=spec.check_params(params)))
        await runner.start()
        env = runner.env
        assert isinstance(env, PictureEnv)
        text = env.reply([env.random_action(random.Random(1)) or ""], "thoughts") if reply is None else reply
        return await runner.step(assistant(text))

    return asyncio.run(play())


@pytest.mark.parametrize("name", NAMES)
def test_reasoning_of_a_demonstration_earns_full_rewards(name: str) -> None:
    free = step(name, {})
    both = step(name, {"reasoning": "both", "grounding_reward": 0.5, "prediction_reward": 0.25})
    assert both.info["rewards"] == {"grounding": 1.0, "prediction": 1.0}
    assert both.reward == pytest.approx(free.reward + 0.75)
    assert "rewards" not in free.info


@pytest.mark.parametrize("name", NAMES)
def test_random_answers_reason_in_the_format_of_the_prompt(name: str) -> None:
    """Warm-up trains on them: it must not teach another format than the one that is rewarded."""
    spec = load_spec(name)
    params = spec.check_params({"reasoning": "both", "max_actions_per_turn": 3})
    rng, scores = random.Random(7), list[dict[str, float]]()

    async def play() -> None:
        for seed in range(4):
            runner = spec.make(Task(env=name, seed=seed, params=params))
            await runner.start()
            result = await runner.step(assistant(runner.random_answer(rng) or ""))
            assert "grounding" in result.info["rewards"]
            if not result.invalid:  # a later action of several may be illegal after the first
                scores.append(result.info["rewards"])

    asyncio.run(play())
    assert scores and all(each == {"grounding": 1.0, "prediction": 1.0} for each in scores)


def test_reasoning_scores_only_the_sections_it_asks_for() -> None:
    assert set(step("frozen_lake", {"reasoning": "grounding"}).info["rewards"]) == {"grounding"}
    assert set(step("frozen_lake", {"reasoning": "world_modelling"}).info["rewards"]) == {"prediction"}


def test_reasoning_without_sections_or_valid_action_scores_nothing() -> None:
    result = step("frozen_lake", {"reasoning": "both"}, "<answer>Left</answer>")
    assert result.info["rewards"] == {"grounding": 0.0, "prediction": 0.0}
    spec = load_spec("frozen_lake")
    env = spec.make(Task(env="frozen_lake", seed=5, params=spec.check_params({}))).env
    assert isinstance(env, PictureEnv)
    stale = step(
        "frozen_lake",
        {"reasoning": "world_modelling"},
        "<think><prediction>player at row 1 col 1</prediction></think>",
    )
    assert stale.invalid and stale.info["rewards"] == {"prediction": 0.0}


def test_reasoning_prompt_states_the_format_and_actions() -> None:
    spec = load_spec("sokoban")
    params = spec.check_params({"reasoning": "both", "examples": True})
    runner = spec.make(Task(env="sokoban", seed=5, params=params))
    prompt = asyncio.run(runner.start()).messages[0].content
    assert "<observation>facts you see</observation>" in prompt and "<prediction>" in prompt
    assert "player at row 1 col 2" in prompt and "Actions: Up" in prompt


def test_state_text_of_games_leaves_out_legal_moves() -> None:
    spec = load_spec("tic_tac_toe")
    runner = spec.make(Task(env="tic_tac_toe", seed=1, params=spec.check_params({"begins": "opponent"})))
    asyncio.run(runner.start())
    env = runner.env
    assert isinstance(env, GameEnv)
    assert (env.state_text() or "").startswith("opponent at row")
    assert len((env.state_text() or "").splitlines()) == 1
