import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Task
from turnwise.envs.connect_four.env import ConnectFour
from turnwise.envs.connect_four.game import BoardGeometry, ConnectFourGame, alpha_beta, best_moves
from turnwise.envs.games.game import board_text
from turnwise.envs.spec import EnvSpec

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
KIND = EnvSpec(name="connect_four", id="connect_four", cls=ConnectFour)
SIZES = st.builds(BoardGeometry, rows=st.integers(4, 8), columns=st.integers(4, 8))
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))


def played(moves, board=None):
    game = ConnectFourGame(board=board or BoardGeometry(6, 7))
    for move in moves:
        game = game.play(move)
    return game


def random_game(board, seed, plies):
    """Play random moves that do not win; fewer than `plies` if every move wins or the board is full."""
    rng, game = random_stream(seed), ConnectFourGame(board=board)
    for _ in range(plies):
        open_games = [after for move in game.legal_moves if (after := game.play(move)).winner is None]
        if not open_games:
            break
        game = rng.choice(open_games)
    return game


def has_line(cells):
    """Return whether four of these (row, column) are in a line, by checking every line."""
    return any(all((r + k * dr, c + k * dc) in cells for k in range(4)) for r, c in cells for dr, dc in DIRECTIONS)


def cells_in(board, stones):
    return {(row, column) for row, column in positions(board) if stones >> (column * (board.rows + 1) + row) & 1}


def positions(board):
    return [(row, column) for row in range(board.rows) for column in range(board.columns)]


def exhaustive_score(game, depth):
    """The score that `alpha_beta` defines, by playing every move."""
    if not game.legal_moves or not depth:
        return 0
    return max(exhaustive_score_of_move(game, move, depth) for move in game.legal_moves)


def exhaustive_score_of_move(game, move, depth):
    after = game.play(move)
    return depth if after.winner is not None else -exhaustive_score(after, depth - 1)


@given(SIZES, st.data())
def test_line_detection_matches_a_check_of_every_line(board, data):
    places = st.tuples(st.integers(0, board.rows - 1), st.integers(0, board.columns - 1))
    cells = data.draw(st.sets(places, max_size=24))
    stones = sum(1 << (column * (board.rows + 1) + row) for row, column in cells)
    assert cells_in(board, stones) == cells
    assert board.has_four(stones) == has_line(cells)
    if not has_line(cells):
        tops = {(row, column) for row, column in positions(board) if not cells & {(up, column) for up in range(row, 8)}}
        completing = cells_in(board, board.completing_cells(stones))
        assert completing & tops == {cell for cell in tops if has_line(cells | {cell})}
        assert not board.completing_cells(stones) & ~board.full


@given(SIZES, st.integers(0, 10**6))
def test_pieces_fall_to_the_lowest_free_cell(board, seed):
    rng, game, heights = random_stream(seed), ConnectFourGame(board=board), Counter()
    while game.legal_moves:
        assert game.legal_moves == tuple(name for name in board.columns_by_name if heights[name] < board.rows)
        move, before = rng.choice(game.legal_moves), game
        game = game.play(move)
        new = game.stones[before.current_player] & ~before.stones[before.current_player]
        assert cells_in(board, new) == {(heights[move], int(move) - 1)}
        assert game.stones[1 - before.current_player] == before.stones[1 - before.current_player]
        assert (game.winner == before.current_player) == has_line(cells_in(board, game.stones[before.current_player]))
        heights[move] += 1
    assert game.winner is not None or sum(heights.values()) == board.rows * board.columns


def test_board_text():
    game = played("4455", BoardGeometry(4, 5))
    assert board_text(game, 0) == "_ _ _ _ _\n_ _ _ 4 5\n_ _ _ O O\n1 2 3 X X"
    assert board_text(game, 1) == "_ _ _ _ _\n_ _ _ 4 5\n_ _ _ X X\n1 2 3 O O"
    assert board_text(game.play("3").play("1").play("2"), 0).endswith("\n_ _ _ O O\nO X X X X")


def test_play_rejects_full_and_unknown_columns_and_finished_games():
    wrong = [("111111", move) for move in ("1", "0", "8", "", "11")]
    for moves, move in [*wrong, ("1122334", "5")]:
        with pytest.raises(ValueError):
            played(moves).play(move)


@pytest.mark.parametrize(
    ("board", "depths", "seeds"),
    [(BoardGeometry(6, 7), (1, 2, 3), 40), (BoardGeometry(4, 5), (4,), 120), (BoardGeometry(4, 4), (5, 6), 40)],
)
def test_search_matches_an_exhaustive_search(board, depths, seeds):
    for seed in range(seeds * SOAK):
        game = random_game(board, seed, plies=3 + seed % (board.rows * 2))
        mine, theirs = game.stones[game.current_player], game.stones[1 - game.current_player]
        threatened = any(has_line(cells_in(board, theirs | cell)) for cell in landing_cells(game))
        for depth in depths if game.legal_moves else ():
            scores = {move: exhaustive_score_of_move(game, move, depth) for move in game.legal_moves}
            best = {move for move, score in scores.items() if score == max(scores.values())}
            found = set(best_moves(game, depth))
            assert found and (found <= best if threatened else found == best)
            if exhaustive_score(game, 1) == 0:
                assert alpha_beta(board, mine, theirs, depth, -depth, depth) == max(scores.values())


def landing_cells(game):
    return [cell for row in game.board.by_rows for cell, _ in row if game.landing_cells & cell]


def test_search_depth_is_in_plies():
    assert best_moves(played("112233"), 1) == ("4",), "one ply: a win at hand"
    assert len(best_moves(played("11223"), 1)) == 7, "one ply does not see the threat"
    assert best_moves(played("11223"), 2) == ("4",), "two plies see it"
    assert len(best_moves(played("3343"), 2)) > 2
    assert set(best_moves(played("3343"), 3)) == {"2", "5"}, "three plies see that three with two open ends win"


def test_best_moves_block_when_lost_and_start_from_the_middle():
    assert best_moves(played("33445"), 4) == ("2", "6")
    assert best_moves(ConnectFourGame(board=BoardGeometry(6, 7)), 4) == ("4", "3", "5", "2", "6", "1", "7")


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_solver_beats_the_opponent_within_the_limits(strength):
    results = Counter()
    for seed in range(25 * SOAK):
        env = ConnectFour({"strength": strength}, rng=random_stream("luck", seed))
        env.reset(random_stream("start", seed))
        turns = 1
        while not (end := env.step(env.solve()[0])).over:
            turns += 1
        assert turns <= 21
        results[end.reward] += 1
    assert results[1.0] >= (0.9 if strength == 1 else 0.95) * 25 * SOAK


def test_draw_pays_half_and_succeeds_only_with_draw_is_success():
    draws = [
        game
        for seed in range(300)
        if not (game := random_game(BoardGeometry(4, 4), seed, 15)).legal_moves[1:] and game.legal_moves
    ]
    draws = [game for game in draws if game.current_player == 1 and game.play(game.legal_moves[0]).winner is None]
    for counts in (False, True):
        env = ConnectFour({"rows": 4, "columns": 4, "draw_is_success": counts})
        env.player, env.game = 1, draws[0]
        end = env.step(draws[0].legal_moves[0])
        assert (end.over, end.reward, end.success) == (True, 0.5, counts) and end.text.endswith("\nA draw.")


def test_board_size_changes_board_moves_and_prompt():
    for rows, columns in ((4, 4), (5, 8), (8, 5)):
        env = ConnectFour({"rows": rows, "columns": columns, "begins": "agent"})
        lines = env.reset(random_stream(0)).split("\n")
        assert len(lines) == rows and all(len(line.split()) == columns for line in lines)
        assert lines[-1].split() == list(env.action_names) and len(env.action_names) == columns
    runner = KIND.make(Task(env="connect_four", seed=0, params={"columns": 5}))
    assert runner.env.action_names == ("1", "2", "3", "4", "5")


def test_large_board_needs_more_turns():
    with pytest.raises(UserError, match="a game can take 32 of the agent's moves"):
        KIND.check_params({"rows": 8, "columns": 8})
    assert KIND.check_params({"rows": 8, "columns": 8, "max_turns": 32})["depth"] == 4


def test_opponent_and_solver_use_their_own_depth(monkeypatch):
    depths = []
    monkeypatch.setattr("turnwise.envs.connect_four.env.best_moves", lambda game, depth: depths.append(depth) or ("4",))
    env = ConnectFour({"begins": "agent", "strength": 1, "depth": 3, "solver_depth": 5})
    env.reset(random_stream(0))
    env.solve()
    env.step("4")
    assert depths == [5, 3]
