"""Every two-player game: views of the board, and play against the scripted opponent."""

import asyncio
import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Task
from turnwise.envs.connect_four.env import ConnectFour
from turnwise.envs.games.game import SYMBOLS, board_text, result_for
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.envs.tic_tac_toe.env import TicTacToe
from turnwise.models.loading.tiny import tiny_pieces

CLASSES = {"tic_tac_toe": TicTacToe, "connect_four": ConnectFour}
SWAPPED = {"you": "opponent", "opponent": "you"}
NAMES = pytest.mark.parametrize("name", CLASSES)


def kind(name):
    return EnvSpec(name=name, id=name, cls=CLASSES[name])


def start(name, index=0, member=0, **params):
    task = Task(env=name, seed=seed_for("train", index), params=params)
    runner = kind(name).make(task, member=member)
    runner.opening = asyncio.run(runner.start())
    return runner


def prompt(name, index=0, **params):
    return start(name, index, **params).opening.messages[0].content


def board(runner):
    return runner.opening.messages[1].content


def env_after(name, moves, player, **params):
    """Return an environment after these moves."""
    env = CLASSES[name](params, rng=random_stream("test"))
    env.player, env.game = player, env.new_game()
    for move in moves:
        env.game = env.game.play(move)
    return env


WINNING_MOVES = {"tic_tac_toe": ("1425", "3"), "connect_four": ("112233", "4")}
"""(moves so far, winning move of player 0)"""
BLUNDERS = {"tic_tac_toe": ("142", "9"), "connect_four": ("11223", "7")}
"""(moves so far, move of player 1 that lets player 0 win)"""


@NAMES
def test_random_games_alternate_and_both_views_agree(name):
    endings = Counter()
    for seed in range(30):
        rng, game = random_stream(seed), CLASSES[name]().new_game()
        player = 0
        while not result_for(game, 0):
            assert game.current_player == player and game.legal_moves and result_for(game, 1) == ""
            mirrored = tuple(tuple(SWAPPED.get(cell, cell) for cell in row) for row in game.cells(0))
            assert game.cells(1) == mirrored
            shown = {cell for row in game.cells(0) for cell in row} - {"you", "opponent", "empty"}
            assert shown == set(game.legal_moves), "the board shows the legal moves, and no others"
            game, player = game.play(rng.choice(game.legal_moves)), 1 - player
        assert game.legal_moves == () and not set("".join(board_text(game, 0).split())) & set("123456789")
        views = result_for(game, 0), result_for(game, 1)
        assert views in {("win", "loss"), ("loss", "win"), ("draw", "draw")}
        assert game.winner == {"win": 0, "loss": 1, "draw": None}[views[0]]
        assert pickle.loads(pickle.dumps(game)) == game and hash(pickle.loads(pickle.dumps(game))) == hash(game)
        endings[views[0]] += 1
    assert endings["win"] and endings["loss"]


@NAMES
def test_win_and_loss_end_the_game_with_their_rewards(name):
    for params, rewards in (({}, (1.0, 0.0)), ({"win_reward": 3.0, "loss_reward": -2.0}, (3.0, -2.0))):
        moves, last = WINNING_MOVES[name]
        won = env_after(name, moves, player=0, strength=1, **params).step(last)
        assert (won.over, won.success, won.reward) == (True, True, rewards[0]) and won.text.endswith("\nYou win.")
        moves, blunder = BLUNDERS[name]
        env = env_after(name, moves, player=1, strength=1, **params)
        lost = env.step(blunder)
        assert (lost.over, lost.success, lost.reward) == (True, False, rewards[1]) and lost.text.endswith("\nYou lose.")
        assert env.draw().caption == "loss" and env.solve() is None and env.random_action(random_stream(0)) is None


@NAMES
def test_undecided_turn_pays_nothing_and_shows_both_moves(name):
    runner = start(name, begins="agent")
    env = runner.env
    outcome = env.step(env.game.legal_moves[0])
    assert (outcome.over, outcome.success, outcome.reward) == (False, False, 0.0)
    assert outcome.text == env.state_key() == board_text(env.game, 0)
    cells = Counter(cell for row in env.draw().rows for cell in row)
    assert cells["you"] == cells["opponent"] == 1


@NAMES
def test_illegal_move_is_invalid_and_changes_nothing(name, steps):
    runner = start(name, begins="agent", max_turns=30)
    env = runner.env
    env.game = env_after(name, "15" if name == "tic_tac_toe" else "111111", player=0).game
    before, rng_state = env.game, env.rng.getstate()
    for action in ("1", "0", "99", "column 2"):
        (result,) = steps(runner, [f"<answer>{action}</answer>"])
        assert result.invalid and not result.over and result.reward == 0.0
        assert env.game is before and env.rng.getstate() == rng_state
    (result,) = steps(runner, ["<answer>2</answer>"])
    assert not result.invalid and env.game is not before


@NAMES
def test_invalid_answers_run_into_the_stated_turn_limit(name, steps):
    runner = start(name)
    results = steps(runner, ["<answer>x</answer>"] * 50)
    assert len(results) == runner.env.max_turns and f"at most {len(results)} turns in all" in prompt(name)
    assert results[-1].truncated and not results[-1].success and sum(result.reward for result in results) == 0


@NAMES
@settings(max_examples=40)
@given(text=st.one_of(st.text(max_size=30), st.sampled_from(["1", "٣", "²", "1.0", "+1", "1_0", " 1", "1\n", "-1"])))
def test_any_text_is_a_legal_move_or_a_value_error(name, text):
    env = env_after(name, (), player=0)
    try:
        env.step(text)
    except ValueError:
        assert text not in env.action_names
        assert env.game == env.new_game()
    else:
        assert text in env.action_names


@NAMES
def test_huge_answers_are_rejected_fast(name, steps):
    for huge in ("9" * 10**6, "1" * 10**5 + ".0", "(" * 10**6):
        (result,) = steps(start(name), [f"<answer>{huge}</answer>"])
        assert result.invalid and len(result.messages[0].content) < 300


@NAMES
def test_first_player_is_drawn_per_task_or_set(name):
    first = Counter(start(name, index).env.player for index in range(100))
    assert 35 <= first[0] <= 65
    for index in range(10):
        assert "O" not in board(start(name, index, begins="agent"))
        assert board(start(name, index, begins="opponent")).count("O") == 1
        assert "X" not in board(start(name, index))


@NAMES
def test_members_share_the_opening_and_differ_in_replies(name, steps):
    for begins, openings in (("agent", 1), ("opponent", 4)):
        assert len({board(start(name, index, begins=begins)) for index in range(40)}) >= openings
        runners = [start(name, 3, member=member, begins=begins) for member in range(12)]
        assert len({board(runner) for runner in runners}) == 1
        move = runners[0].env.game.legal_moves[0]
        replies = {steps(runner, [f"<answer>{move}</answer>"])[0].messages[0].content for runner in runners}
        assert len(replies) > 1


@NAMES
def test_strength_is_the_probability_of_a_best_move(name):
    moves, best = WINNING_MOVES[name]
    before = env_after(name, moves, player=1).game  # the opponent to move, with a win at hand
    for strength in (0.0, 0.5, 1.0):
        replies = Counter()
        env = env_after(name, (), player=1, strength=strength)
        for _ in range(600):
            env.game = before
            env._play_opponent(env.rng)
            replies[next(move for move in before.legal_moves if before.play(move) == env.game)] += 1
        expected = 600 * (strength + (1 - strength) / len(before.legal_moves))
        assert abs(replies[best] - expected) <= 60 and (strength < 1 or replies[best] == 600)
        assert strength == 1 or len(replies) == len(before.legal_moves)


@NAMES
def test_full_strength_opponent_loses_less_than_a_random_one(name):
    def result(strength):
        total = 0.0
        for seed in range(40):
            env = CLASSES[name]({"strength": strength}, rng=random_stream("luck", seed))
            env.reset(random_stream("start", seed))
            rng = random_stream("agent", seed)
            while not (outcome := env.step(env.random_action(rng))).over:
                pass
            total += outcome.reward
        return total / 40

    assert result(0.0) > 0.3 > result(1.0)


@NAMES
def test_prompt_states_rewards_legend_moves_and_limits(name):
    text = prompt(name)
    assert "A win pays 1, a draw 0.5, a loss 0." in text
    assert "X you, O opponent, _ empty. A number is a move: your X goes there." in text
    assert f"Actions: {', '.join(CLASSES[name]().action_names)}." in text
    assert f"1 action a turn; at most {CLASSES[name]().max_turns} turns in all." in text
    assert len(text.split()) <= 80
    other = prompt(name, win_reward=2, draw_reward=0.25, loss_reward=-1, max_turns=30, max_actions=25)
    assert "A win pays 2, a draw 0.25, a loss -1." in other
    assert "at most 30 turns and 25 actions in all." in other
    assert len({prompt(name, index) for index in range(10)}) == 1, "the prompt is the same for all episodes"


@NAMES
def test_cells_and_moves_are_single_tokens_and_in_the_legend(name):
    pieces = set(tiny_pieces())
    env = CLASSES[name]()
    for symbol in (*SYMBOLS.values(), *env.action_names):
        assert symbol in pieces and f" {symbol}" in pieces
    legend = env.rules().split("\n")[1]
    for index in range(10):
        symbols = set(board(start(name, index)).split())
        assert all(f"{symbol} " in legend or symbol in env.action_names for symbol in symbols)


@NAMES
def test_limits_below_the_longest_game_are_rejected(name):
    longest = {"tic_tac_toe": 5, "connect_four": 21}[name]
    complaint = f"a game can take {longest} of the agent's moves"
    for params in ({"max_turns": longest - 1}, {"max_actions": longest - 1}):
        with pytest.raises(UserError, match=complaint):
            kind(name).check_params(params)
    for params in ({"max_turns": longest}, {"max_turns": longest // 2 + 1, "max_actions_per_turn": 2}):
        assert kind(name).check_params(params)["max_turns"] == params["max_turns"]


@NAMES
def test_turn_info_records_the_board_before_the_move(name, steps):
    runner = start(name, 1)
    (result,) = steps(runner, [f"<answer>{runner.env.game.legal_moves[-1]}</answer>"])
    assert result.info["state"] == board(runner)


@NAMES
def test_explain_gives_the_reason_for_a_move(name):
    moves, win = WINNING_MOVES[name]
    assert env_after(name, moves, player=0).explain([win]) == f"I can win. Next: {win}."
    threat, blunder = BLUNDERS[name]
    env = env_after(name, threat, player=1)
    assert env.solve() == [win] and env.explain([win]) == f"I must block. Next: {win}."
    assert env.explain([blunder]) == f"Next: {blunder}."


@NAMES
def test_every_parameter_has_a_description(name):
    assert all(parameter.description for parameter in kind(name).parameters())


def test_random_moves_precede_the_opponents_first_move() -> None:
    def begun(index: int, member: int = 0) -> TicTacToe:
        task = Task(env="tic_tac_toe", seed=seed_for("train", index), params={"random_moves": 6, "strength": 1.0})
        runner = kind("tic_tac_toe").make(task, member)
        asyncio.run(runner.start())
        return runner.env

    for index in range(60):
        env = begun(index)
        assert (
            env.game.current_player == env.player and env.game.legal_moves and env.game == begun(index, member=3).game
        )
    assert len({begun(index).game for index in range(60)}) > 30
