"""Self-play: what each player sees and earns, and that a player who leaves does not block the other."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from players_for_tests import player_of
from turnwise.core.errors import UserError
from turnwise.core.messages import assistant
from turnwise.core.protocols import Observation, StepResult
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Task
from turnwise.envs.games.game import is_winning_move, play_random_opening
from turnwise.envs.games.selfplay import SelfPlayEnv, as_player, make_selfplay_envs
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for

MIRROR = {"win": "loss", "loss": "win", "draw": "draw"}
Choose = Callable[[str], str]
"""board -> answer"""


def make_pair(
    name: str = "tic_tac_toe", member: int = 0, attempt: int = 0, **params: Any
) -> tuple[SelfPlayEnv, SelfPlayEnv]:
    task = Task(env=name, seed=seed_for("train", 0), params={"begins": "agent", **params})
    return make_selfplay_envs(load_spec(name), task, member, attempt)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run with a time limit, so that a deadlock fails."""
    return asyncio.run(asyncio.wait_for(coroutine, timeout=120))


def answer(action: str) -> Any:
    return assistant(f"<answer>{action}</answer>")


async def play(env: SelfPlayEnv, choose: Choose) -> tuple[Observation, list[StepResult]]:
    """Play one player's whole episode."""
    opening = await env.start()
    results: list[StepResult] = []
    board = opening.messages[-1].content
    while not (results and results[-1].over):
        results.append(await env.step(answer(choose(board))))
        board = results[-1].messages[0].content
    await env.close()
    return opening, results


async def match(
    pair: tuple[SelfPlayEnv, SelfPlayEnv], first: Choose, second: Choose
) -> list[tuple[Observation, list[StepResult]]]:
    return await asyncio.gather(play(pair[0], first), play(pair[1], second))


def random_player(seed: int) -> Choose:
    rng = random_stream("player", seed)
    return lambda board: rng.choice([cell for cell in board.split() if cell.isdigit()])


def scripted_player(moves: str) -> Choose:
    remaining = iter(moves)
    return lambda board: next(remaining)


@pytest.mark.parametrize("name", ["tic_tac_toe", "connect_four"])
def test_players_results_and_rewards_mirror_each_other(name: str) -> None:
    rewards = {"win": 3.0, "draw": 1.0, "loss": -2.0}
    params = {f"{how}_reward": pay for how, pay in rewards.items()}
    seen = set()
    for seed in range(30):
        both = run(match(make_pair(name, **params), random_player(2 * seed), random_player(2 * seed + 1)))
        ours, theirs = ([result.info.get("result") for result in results] for _, results in both)
        assert theirs[-1] == MIRROR[ours[-1]] and set(ours[:-1] + theirs[:-1]) <= {None}
        for _, results in both:
            how = results[-1].info["result"]
            assert [result.reward for result in results] == [0.0] * (len(results) - 1) + [rewards[how]]
            assert results[-1].terminated and results[-1].success == (how == "win") == results[-1].info["success"]
            assert not any(result.invalid or result.truncated for result in results)
            end = {"win": "You win.", "draw": "A draw.", "loss": "You lose."}[how]
            assert results[-1].messages[0].content.endswith(end)
        seen.add(ours[-1])
    assert {"win", "loss"} <= seen


def test_players_see_their_pieces_as_x_and_the_opponents_move() -> None:
    (first, ours), (second, theirs) = run(match(make_pair(), scripted_player("1259"), scripted_player("368")))
    assert first.messages[-1].content == "1 2 3\n4 5 6\n7 8 9"
    assert second.messages[-1].content == "O 2 3\n4 5 6\n7 8 9"
    assert ours[0].messages[0].content == "X 2 O\n4 5 6\n7 8 9"
    assert theirs[0].messages[0].content == "O O X\n4 5 6\n7 8 9"
    assert theirs[0].info["state"] == second.messages[-1].content and theirs[0].info["actions"] == ["3"]
    assert ours[0].picture is not None and ours[0].picture.rows[0] == ("you", "2", "opponent")


def test_observations_equal_those_of_the_game_against_a_script() -> None:
    async def compared() -> None:
        env, _ = make_pair()
        runner = load_spec("tic_tac_toe").make(
            Task(env="tic_tac_toe", seed=seed_for("train", 0), params={"begins": "agent"})
        )
        assert await env.start() == await runner.start()
        for text in ("hello", "<answer></answer>", "<answer>77</answer>", "<answer>1 || 2</answer>"):
            ours, theirs = await env.step(assistant(text)), await runner.step(assistant(text))
            assert ours == theirs and ours.invalid

    run(compared())


def test_draw_is_success_for_both_with_draw_is_success() -> None:
    for counts in (False, True):
        both = run(match(make_pair(draw_is_success=counts), scripted_player("12679"), scripted_player("5348")))
        for _, results in both:
            assert results[-1].info["result"] == "draw" and results[-1].reward == 0.5
            assert results[-1].success == results[-1].info["success"] == counts


def test_invalid_answer_keeps_the_turn() -> None:
    (_, ours), (_, theirs) = run(match(make_pair(), scripted_player("1x12345"), scripted_player("456")))
    assert [result.invalid for result in ours] == [False, True, True, False, False]
    assert ours[1].messages[0].content == "Invalid action.\nX 2 3\nO 5 6\n7 8 9"
    assert len(theirs) == 2 and theirs[-1].info["result"] == "loss"


def test_player_out_of_turns_loses_and_random_moves_replace_it() -> None:
    pair = make_pair(loss_reward=-1.0)
    (_, ours), (_, theirs) = run(match(pair, scripted_player("1" * 50), random_player(5)))
    assert len(ours) == 7 and ours[-1].truncated and not ours[-1].success and not ours[-1].terminated
    assert [result.reward for result in ours] == [0.0] * 6 + [-1.0] and ours[-1].info["result"] == "loss"
    assert ours[-1].messages[0].content.endswith("No turns left.")
    assert theirs[-1].terminated and theirs[-1].info["result"] in MIRROR and len(theirs) >= 3


def test_replacement_moves_depend_on_member_and_attempt() -> None:
    def boards(member: int, attempt: int) -> list[str]:
        pair = make_pair(member=member, attempt=attempt)
        _, (opening, results) = run(match(pair, scripted_player("x" * 50), lambda board: min(board.split())))
        return [opening.messages[-1].content, *(result.messages[0].content for result in results)]

    assert boards(0, 0) == boards(0, 0)
    assert len({tuple(boards(member, attempt)) for member in range(6) for attempt in range(2)}) > 4


def test_leaving_player_does_not_block_the_opponent() -> None:
    async def leave(leaver: int, after: int) -> None:
        pair = make_pair()
        other = asyncio.create_task(play(pair[1 - leaver], random_player(1)))
        await pair[leaver].start() if after else None
        for move in "59"[:after]:
            await pair[leaver].step(answer(move)) if leaver == 0 else None
        await pair[leaver].close()
        opening, results = await other
        assert results[-1].terminated and opening.messages[-1].content.count("O") == (leaver == 0)

    for leaver in (0, 1):
        for after in (0, 1):
            run(leave(leaver, after))


def test_both_players_may_leave_at_any_time() -> None:
    async def leave() -> None:
        pair = make_pair()
        waiting = asyncio.create_task(pair[1].start())
        await asyncio.sleep(0)
        waiting.cancel()
        for env in (*pair, *pair):
            await env.close()

    run(leave())


def stones(board: str) -> int:
    return sum(cell in "XO" for cell in board.split())


@pytest.mark.parametrize(("name", "most"), [("tic_tac_toe", 9), ("connect_four", 12)])
def test_random_opening_leaves_both_players_a_turn(name: str, most: int) -> None:
    met, lengths = set(), set()
    for number in range(150):
        game = play_random_opening(load_spec(name).cls().new_game(), most, random_stream("opening", number))
        assert (
            game.winner is None
            and len(game.legal_moves) > 1
            and not any(is_winning_move(game, move) for move in game.legal_moves)
        )
        met.add(game)
        lengths.add(sum(cell in ("you", "opponent") for row in game.cells(0) for cell in row))
    assert len(met) > 60 and {0, 1, 2, 3} <= lengths and max(lengths) <= most
    pair = make_pair(name, random_moves=most)
    both = run(match(pair, random_player(1), random_player(2)))
    assert all(results and results[-1].terminated for _, results in both)
    assert MIRROR[both[0][1][-1].info["result"]] == both[1][1][-1].info["result"]


def test_random_opening_depends_on_the_task_alone() -> None:
    def openings(index: int, player: int, member: int, most: int = 6) -> tuple[str, str]:
        task = Task(env="tic_tac_toe", seed=seed_for("train", index), params={"random_moves": most})
        pair = make_selfplay_envs(load_spec("tic_tac_toe"), as_player(task, player), member)
        first, second = run(match(pair, random_player(1), random_player(2)))
        return first[0].messages[-1].content, second[0].messages[-1].content

    kept = openings(7, 0, 0)
    assert kept == openings(7, 1, 0) == openings(7, 0, 5)
    assert abs(stones(kept[0]) - stones(kept[1])) == 1, "the second player sees the first move"
    assert len({openings(index, 0, 0) for index in range(30)}) > 20
    assert max(stones(board) for index in range(30) for board in openings(index, 0, 0, most=2)) == 3
    assert openings(7, 0, 0, most=0)[0] == "1 2 3\n4 5 6\n7 8 9"


def test_as_player_changes_only_who_begins() -> None:
    task = Task(env="tic_tac_toe", seed=3, params={"strength": 0.5, "begins": "random"})
    first, second = as_player(task, 0), as_player(task, 1)
    assert (player_of(first), player_of(second)) == (0, 1) and as_player(second, 0) == first
    assert first.seed == second.seed and {**first.params, "begins": "opponent"} == second.params


def test_environment_that_is_not_a_game_is_rejected() -> None:
    with pytest.raises(UserError, match="frozen_lake is not a two-player game"):
        make_selfplay_envs(load_spec("frozen_lake"), Task(env="frozen_lake", seed=seed_for("train", 0)))
