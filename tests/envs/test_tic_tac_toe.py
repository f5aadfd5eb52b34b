import os
from collections import Counter
from functools import cache

import pytest

from turnwise.core.random_streams import random_stream
from turnwise.envs.tic_tac_toe.env import MOVES, TicTacToe, TicTacToeGame, hardest_move, minimax_value, perfect_moves

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))


def played(moves):
    game = TicTacToeGame()
    for move in moves:
        game = game.play(move)
    return game


@cache
def all_positions():
    found, edge = {TicTacToeGame()}, [TicTacToeGame()]
    while edge:
        value_of_move = {game.play(move) for game in edge for move in game.legal_moves}
        edge = list(value_of_move - found)
        found |= value_of_move
    return found


@cache
def outcome(game):
    """(1, 0 or -1 for the player to move, plies until then), by a plain minimax."""
    if not game.legal_moves:
        return (0 if game.winner is None else -1), 0
    return max((value_of_move(game, move) for move in game.legal_moves), key=rank)


def value_of_move(game, move):
    sign, plies = outcome(game.play(move))
    return -sign, plies + 1


def rank(result):
    return result[0] * (100 - result[1])


def test_position_and_result_counts_match_the_literature():
    ended = Counter(game.winner for game in all_positions() if not game.legal_moves)
    assert len(all_positions()) == 5478 and ended == {0: 626, 1: 316, None: 16}


@pytest.mark.parametrize("line", ["123", "456", "789", "147", "258", "369", "159", "357"])
def test_every_line_wins_for_either_player(line):
    a, b, c = line
    others = [move for move in MOVES if move not in line]
    x, y, z = next(
        trio
        for trio in ((others[i], others[j], others[k]) for i in range(6) for j in range(i) for k in range(j))
        if played([trio[0], a, trio[1], b, trio[2]]).winner is None
    )
    assert played([a, x, b, y]).winner is None and played([a, x, b, y, c]).winner == 0
    assert played([x, a, y, b, z, c]).winner == 1 and played([x, a, y, b, z, c]).legal_moves == ()


def test_cells_are_numbered_by_row_and_relative_to_the_player():
    game = played("519")
    assert game.cells(0) == (("opponent", "2", "3"), ("4", "you", "6"), ("7", "8", "you"))
    assert game.cells(1) == (("you", "2", "3"), ("4", "opponent", "6"), ("7", "8", "opponent"))
    assert played("14253").cells(0) == (("you",) * 3, ("opponent", "opponent", "empty"), ("empty",) * 3)


def test_observation_text():
    env = TicTacToe({"begins": "agent", "strength": 1})
    assert env.reset(random_stream(0)) == "1 2 3\n4 5 6\n7 8 9"
    assert env.step("1").text == "X 2 3\n4 O 6\n7 8 9"


def test_play_rejects_taken_cells_and_finished_games():
    for game, move in ((played("5"), "5"), (played("14253"), "9"), (played(""), "10"), (played(""), "")):
        with pytest.raises(ValueError):
            game.play(move)


def test_minimax_matches_a_plain_search_in_every_position():
    for game in all_positions():
        best = rank(outcome(game))
        assert (minimax_value(game) > 0) - (minimax_value(game) < 0) == (best > 0) - (best < 0)
        assert perfect_moves(game) == tuple(
            move for move in game.legal_moves if rank(value_of_move(game, move)) == best
        )
        assert not game.legal_moves or hardest_move(game) in perfect_moves(game)


def test_perfect_moves_win_block_and_draw():
    assert perfect_moves(played("1425")) == ("3",), "not a slower win"
    assert perfect_moves(played("142")) == ("3",), "the only block"
    assert perfect_moves(played("1")) == ("5",), "against a corner only the centre holds"
    assert set(perfect_moves(played(""))) == set(MOVES), "every opening draws"


def test_perfect_moves_never_lose():
    def check(game, player):
        if game.legal_moves:
            for move in perfect_moves(game) if game.current_player == player else game.legal_moves:
                check(game.play(move), player)
        else:
            assert game.winner in (None, player)

    check(TicTacToeGame(), 0)
    check(TicTacToeGame(), 1)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_solver_never_loses_and_beats_weak_opponents(strength):
    results = Counter()
    for seed in range(200 * SOAK):
        env = TicTacToe({"strength": strength, "draw_is_success": True}, rng=random_stream("luck", seed))
        env.reset(random_stream("start", seed))
        turns = 1
        while not (end := env.step(env.solve()[0])).over:
            turns += 1
        assert end.success and turns <= 5
        results[end.reward] += 1
    wins = results[1.0] / (200 * SOAK)
    assert set(results) <= {0.5, 1.0}
    assert wins == 0 if strength == 1 else wins > 0.6 if strength else wins > 0.9


def test_draw_pays_half_and_succeeds_only_with_draw_is_success():
    for counts in (False, True):
        env = TicTacToe({"draw_is_success": counts, "strength": 1}, rng=random_stream("test"))
        env.player, env.game = 0, played("51283746")
        end = env.step("9")
        assert (end.over, end.reward, end.success) == (True, 0.5, counts) and end.text.endswith("\nA draw.")
    env = TicTacToe({"draw_reward": 0.2, "draw_is_success": True})
    env.player, env.game = 0, played("51283746")
    assert env.step("9").reward == 0.2
