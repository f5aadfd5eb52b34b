"""`tw.to_gymnasium`: Gymnasium's own checker, vector environments, and episodes equal to those of turnwise."""

import asyncio
import random
import warnings
from typing import Any

import pytest

import turnwise as tw
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for

gymnasium = pytest.importorskip("gymnasium")
env_checker = pytest.importorskip("gymnasium.utils.env_checker")


@pytest.mark.parametrize("name", ["frozen_lake", "sokoban", "game_2048", "sudoku", "lookup"])
def test_gymnasium_checker_accepts_the_environment(name: str) -> None:
    env = tw.to_gymnasium(name, render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error", category=DeprecationWarning)
        env_checker.check_env(env, skip_render_check=True)
    env.close()


@pytest.mark.parametrize("split", ["train", "test"])
def test_gymnasium_env_plays_the_tasks_of_turnwise(split: Any) -> None:
    env = tw.to_gymnasium("frozen_lake", split=split, slippery=False)
    shown, info = env.reset(options={"index": 5})
    task = Task(env="frozen_lake", seed=seed_for(split, 5), split=split, params={"slippery": False})
    runner = load_spec("frozen_lake").make(task)
    opening = asyncio.run(runner.start())
    assert shown == opening.messages[1].content and info["messages"][0]["content"] == opening.messages[0].content
    rng, over = random.Random(0), False
    while not over:
        move = rng.randrange(4)
        result = asyncio.run(runner.step(assistant(f"<answer>{env.action_names[move]}</answer>")))
        shown, reward, terminated, truncated, info = env.step(move)
        assert (shown, reward) == (result.messages[0].content, result.reward) and info["success"] == result.success
        assert (terminated, truncated) == (result.terminated, result.truncated)
        over = result.over
    env.close()


def test_gymnasium_env_repeats_an_episode_by_its_seed() -> None:
    env = tw.to_gymnasium("frozen_lake", slippery=True)
    episodes = []
    for _ in range(2):
        env.reset(seed=3)
        episodes.append([env.step(1)[:4] for _ in range(3)])
    assert episodes[0] == episodes[1]


def test_gymnasium_env_takes_whole_replies_where_there_are_tools() -> None:
    env = tw.to_gymnasium("lookup")
    env.reset(seed=1)
    shown, *_, info = env.step("<call>room Nobody</call>")
    assert shown and info["messages"][0]["role"] == "tool"
    env.close()


def test_gymnasium_vector_env_plays_several() -> None:
    envs = gymnasium.vector.SyncVectorEnv([lambda: tw.to_gymnasium("frozen_lake")] * 3)
    shown, _ = envs.reset(seed=1)
    assert len(set(shown)) == 3
    _, rewards, *_ = envs.step(envs.action_space.sample())
    assert rewards.shape == (3,)
    envs.close()


def test_gymnasium_vector_env_refuses_shared_memory_for_texts() -> None:
    """Gymnasium would return empty texts."""
    with pytest.raises(ValueError, match="shared_memory=False"):
        gymnasium.vector.AsyncVectorEnv([lambda: tw.to_gymnasium("frozen_lake")] * 2)


def test_gymnasium_env_gives_no_reward_after_the_end() -> None:
    env = tw.to_gymnasium("bandit")
    env.reset(seed=1)
    first, again = env.step("nothing"), env.step("nothing")
    assert (first[2] or first[3]) and again[1:4] == (0.0, *first[2:4])


def test_gymnasium_env_needs_reset() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        tw.to_gymnasium("sokoban").step(0)
