"""TextArena's games for several players, all of them agents, with the real package."""

import asyncio
import random
import re
from importlib.util import find_spec
from typing import Any

import pytest

from turnwise.core.errors import UserError
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.adapters.text_arena_players import TextArenaPlayers
from turnwise.envs.registry import spec_of
from turnwise.envs.roles.env import RoleRunner, open_match
from turnwise.envs.seeds import seed_for


@pytest.fixture(autouse=True)
def installed(optional_part: Any) -> None:
    if find_spec("textarena") is None:
        optional_part(f"a package is missing: {spec_of(TextArenaPlayers).install_command}")


def runner_of(seed: int = 0, **params: Any) -> RoleRunner:
    spec = spec_of(TextArenaPlayers)
    runner = spec.make(Task(env=spec.name, seed=seed_for("train", seed), params=spec.check_params(params)))
    assert isinstance(runner, RoleRunner)
    return runner


async def play_at_random(seed: int, **params: Any) -> dict[str, list[Any]]:
    """Play a whole match with random legal moves; return what each player was shown."""
    rng, shown = random.Random(seed), dict[str, list[Any]]()

    async def agent(role: str, seat: RoleRunner) -> None:
        shown[role] = [await seat.start()]
        while not (shown[role][-1].over):
            move = seat.env.random_action(rng)
            shown[role].append(await seat.step(assistant(f"<answer>{move}</answer>")))
        await seat.close()

    async with asyncio.TaskGroup() as match:
        for role, seat in open_match(runner_of(seed, **params), {}):
            match.create_task(agent(role, seat))
    return shown


def test_three_players_see_their_own_turns_and_one_wins_or_none() -> None:
    for seed in range(3):
        shown = asyncio.run(play_at_random(seed))
        assert list(shown) == ["player_0", "player_1", "player_2"]
        starts = [str(first.messages[-1].content) for first, *_ in shown.values()]
        assert all(f"You are the player {number}." in start for number, start in enumerate(starts))
        wins = [results[-1].success for results in shown.values()]
        rewards = [sum(result.reward for result in results[1:]) for results in shown.values()]
        assert sum(wins) <= 1 and all((reward == 1.0) == win for reward, win in zip(rewards, wins, strict=True))


def test_hidden_dice_are_shown_to_their_player_alone() -> None:
    shown = asyncio.run(play_at_random(1, id="LiarsDice-v0", max_turns=30))
    starts = {role: str(first.messages[-1].content) for role, (first, *_) in shown.items()}
    dice = {role: re.findall(r"Your current Dice are: ([\d, ]+)", start) for role, start in starts.items()}
    assert all(len(own) == 1 for own in dice.values()) and len({own[0] for own in dice.values()}) > 1


def test_number_of_players_that_a_game_refuses_is_named() -> None:
    with pytest.raises(UserError, match="cannot be played by 4: choose another number or game"):
        runner_of(id="ThreePlayerTicTacToe-v0", count=4)
