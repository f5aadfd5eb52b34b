"""TextArena: puzzles, and two-player games against a scripted opponent."""

import asyncio
import json
import random
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.adapters.package_envs import TextArenaEnv
from turnwise.envs.adapters.text_arena_moves import MAX_GUESSES, guess_moves, vary
from turnwise.envs.answers import format_answer
from turnwise.envs.registry import spec_of

HANOI = ("A C", "A B", "C B", "A C", "B A", "B C", "A C")
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@pytest.fixture
def installed(optional_part) -> None:
    if find_spec("textarena") is None:
        optional_part(f"a package is missing: {spec_of(TextArenaEnv).install_command}")


def begun(seed=0, member=0, **params):
    kind = spec_of(TextArenaEnv)
    runner = kind.make(Task(env=kind.name, seed=seed, params=params), member=member)
    runner.opening = asyncio.run(runner.start())
    return runner


def acted(runner, *actions):
    return [asyncio.run(runner.step(assistant(format_answer([action])))) for action in actions]


def finished(runner, choose):
    while not (result := acted(runner, choose(runner))[0]).over:
        pass
    return result


def at_random(seed):
    rng = random.Random(seed)
    return lambda runner: runner.env.random_action(rng)


def cells(text: str) -> list[str]:
    return re.findall(r"\b([0-8OX])\b(?= \||\s*\n|\s*$)", text.rpartition("Current Board:")[2].split("Available")[0])


def sharp(runner) -> str:
    """Win or block if possible, else take the middle, a corner, or any cell."""
    board = cells(runner.env.text)
    free = [int(cell) for cell in board if cell.isdigit()]
    mine = "O" if board.count("O") <= board.count("X") and runner.env.params.player == "first" else "X"
    for mark in (mine, "OX".replace(mine, "")):
        for line in LINES:
            marks = [board[cell] for cell in line]
            if marks.count(mark) == 2 and (left := [cell for cell in line if cell in free]):
                return str(left[0])
    return str(next(cell for cell in (4, 0, 2, 6, 8, *free) if cell in free))


@pytest.mark.usefixtures("installed")
def test_text_arena_puzzle_needs_its_whole_solution() -> None:
    runner = begun(id="TowerOfHanoi-v0")
    assert "Tower of Hanoi" in runner.env.text
    results = acted(runner, *HANOI)
    assert results[-1].success and results[-1].reward == 1 and results[-1].terminated
    assert [each.reward for each in results[:-1]] == [0.0] * 6 and not any(each.over for each in results[:-1])
    assert "[A C]" not in results[0].messages[0].content, "what it said itself is not repeated"


@pytest.mark.usefixtures("installed")
def test_text_arena_reports_invalid_moves() -> None:
    runner = begun(id="TowerOfHanoi-v0")
    wrong = acted(runner, "B C", "nonsense", "[Z Z]", "B A")
    assert all(each.invalid and not each.over and each.reward == 0 for each in wrong)
    assert acted(runner, *HANOI)[-1].success, "and change nothing"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("player", ["first", "second"])
def test_text_arena_good_play_beats_the_random_opponent(player) -> None:
    def wins(choose) -> int:
        return sum(finished(begun(seed, player=player), choose(seed)).success for seed in range(25))

    assert wins(lambda _: sharp) > 17 > wins(at_random)


@pytest.mark.usefixtures("installed")
def test_text_arena_uses_the_rewards_of_the_game() -> None:
    rewards = {}
    for seed in range(40):
        runner = begun(seed, opponent="greedy")
        result = finished(runner, at_random(seed))
        rewards.setdefault(result.reward, set()).add(result.success)
    assert rewards == {1.0: {True}, 0.0: {False}, -1.0: {False}}


@pytest.mark.usefixtures("installed")
def test_text_arena_greedy_opponent_is_stronger() -> None:
    lost = {
        opponent: sum(finished(begun(seed, opponent=opponent), at_random(seed)).reward for seed in range(30))
        for opponent in ("random", "greedy")
    }
    assert lost["greedy"] < lost["random"] - 5


@pytest.mark.usefixtures("installed")
def test_text_arena_player_is_chosen_or_drawn() -> None:
    def me(**params) -> set[str]:
        return {re.search(r"You are Player (\d)", begun(seed, **params).env.text)[1] for seed in range(8)}

    assert me(player="first") == {"0"} and me(player="second") == {"1"} and me() == {"0", "1"}
    shown = begun(player="second").env.text
    assert sum(cell in "OX" for cell in cells(shown)) == 1, "the opponent has moved, and one board is shown"
    assert shown.count("Current Board") == 1


@pytest.mark.usefixtures("installed")
def test_text_arena_members_share_only_the_opening() -> None:
    for player in ("first", "second"):
        runners = [begun(3, member=member, player=player) for member in range(8)]
        assert len({runner.env.text for runner in runners}) == 1
        free = next(cell for cell in cells(runners[0].env.text) if cell.isdigit())
        assert len({acted(runner, free)[0].messages[0].content for runner in runners}) > 3


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("id", ["KuhnPoker-v0", "Nim-v0", "ConnectFour-v0", "Othello-v0-tiny", "LiarsDice-v0-small"])
def test_text_arena_games_end(id) -> None:
    for seed in range(2):
        result = finished(begun(seed, id=id, max_turns=60), at_random(seed))
        assert result.terminated and result.reward in (-1.0, 0.0, 1.0)


@pytest.mark.usefixtures("installed")
def test_text_arena_opponent_moves_can_be_listed() -> None:
    with pytest.raises(EnvironmentFailure, match=r"no legal move: list them in env\.params\.moves"):
        finished(begun(player="first", moves=["[9]"]), lambda runner: "4")
    runner = begun(player="first", moves=[f"[{cell}]" for cell in range(8, -1, -1)])
    assert finished(runner, sharp).terminated


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"id": "TicTacTo-v0"}, "no game"),
        ({"id": "ThreePlayerIPD-v0"}, "more than two players"),
        ({"options": {"size": 3}}, "does not start"),
        ({"id": "TwentyQuestions-v0"}, "calls a paid model over the network"),
    ],
    ids=str,
)
def test_adapter_explains_unsupported_settings(params, line) -> None:
    with pytest.raises(UserError, match=line) as caught:
        begun(**params)
    assert "\n" not in str(caught.value)


OFFLINE = """
import json, socket
asked = []
def refuse(*address, **_):
    asked.append(str(address))
    raise OSError("no network")
socket.getaddrinfo = socket.socket.connect = refuse
import nltk
from turnwise.envs.adapters.text_arena_worker import TextArenaGame
from turnwise.envs.adapters.worker import InvalidSetting
nltk.data.path.clear()
try:
    TextArenaGame("Hangman-v0", {})
except InvalidSetting as error:
    print(json.dumps([str(error), asked]))
"""


@pytest.mark.usefixtures("installed")
def test_text_arena_never_downloads_word_lists() -> None:
    done = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, check=True)
    line, asked = json.loads(done.stdout)
    assert re.search(r"Hangman-v0 needs word lists .*: python -m nltk\.downloader words", line) and len(line) < 200
    assert asked == []


def test_guess_moves_starts_with_the_newest_message() -> None:
    rng = random.Random(0)
    found = list(guess_moves(["rules: '[col 4]'", "board", "Available: '[a]', '[b]'"], [], rng))
    assert set(found[:2]) == {"[a]", "[b]"} and len(found) == len(set(found)) <= MAX_GUESSES
    assert {"[col 0]", "[col 9]"} <= set(found)
    assert list(guess_moves(["no brackets"], [], rng)) == []
    assert sorted(guess_moves(["[z]"], ["x", "y"], rng)) == ["x", "y"]


def test_vary_keeps_the_format() -> None:
    rng = random.Random(0)
    assert all(re.fullmatch(r"row \d+, [A-H]", vary("row 2, C", rng)) for _ in range(50))
