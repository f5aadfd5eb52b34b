import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.random_streams import stream
from turnwise.core.task import Task
from turnwise.envs.connect_four.env import ConnectFour
from turnwise.envs.connect_four.game import BoardGeometry, ConnectFourGame, best_moves, look_ahead
from turnwise.envs.games.game import board_text
from turnwise.envs.spec import EnvSpec

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
KIND = EnvSpec(name="connect_four", id="connect_four", cls=ConnectFour)
SIZES = st.builds(BoardGeometry, rows=st.integers(4, 8), columns=st.integers(4, 8))
WAYS = ((0, 1), (1, 0), (1, 1), (1, -1))


def played(moves, board=None):
    game = ConnectFourGame(board or BoardGeometry(6, 7))
    for move in moves:
        game = game.after(move)
    return game


def random_game(board, seed, plies):
    """A game of so many random moves that nobody has won; fewer where all moves win or the board is full."""
    rng, game = stream(seed), ConnectFourGame(board)
    for _ in range(plies):
        open_games = [after for move in game.moves if (after := game.after(move)).winner is None]
        if not open_games:
            break
        game = rng.choice(open_games)
    return game


def four_in(cells):
    """Whether four of these (row, column) stand in a line: by looking at every line."""
    return any(all((r + k * dr, c + k * dc) in cells for k in range(4)) for r, c in cells for dr, dc in WAYS)


def cells_of(board, stones):
    return {(row, column) for row, column in places_of(board) if stones >> (column * (board.rows + 1) + row) & 1}


def places_of(board):
    return [(row, column) for row in range(board.rows) for column in range(board.columns)]


def plain(game, depth):
    """The score for the player to move as `look_ahead` defines it, by playing every move."""
    if not game.moves or not depth:
        return 0
    return max(plain_after(game, move, depth) for move in game.moves)


def plain_after(game, move, depth):
    after = game.after(move)
    return depth if after.winner is not None else -plain(after, depth - 1)


@given(SIZES, st.data())
def test_four_in_a_line_is_found_as_by_looking_at_every_line(board, data):
    places = st.tuples(st.integers(0, board.rows - 1), st.integers(0, board.columns - 1))
    cells = data.draw(st.sets(places, max_size=24))
    stones = sum(1 << (column * (board.rows + 1) + row) for row, column in cells)
    assert cells_of(board, stones) == cells
    assert board.has_four(stones) == four_in(cells)
    if not four_in(cells):
        tops = {(row, column) for row, column in places_of(board) if not cells & {(up, column) for up in range(row, 8)}}
        completing = cells_of(board, board.completing(stones))
        assert completing & tops == {cell for cell in tops if four_in(cells | {cell})}
        assert not board.completing(stones) & ~board.full


@given(SIZES, st.integers(0, 10**6))
def test_pieces_fall_to_the_lowest_free_cell(board, seed):
    rng, game, heights = stream(seed), ConnectFourGame(board), Counter()
    while game.moves:
        assert game.moves == tuple(name for name in board.columns_by_name if heights[name] < board.rows)
        move, before = rng.choice(game.moves), game
        game = game.after(move)
        new = game.stones[before.player] & ~before.stones[before.player]
        assert cells_of(board, new) == {(heights[move], int(move) - 1)}
        assert game.stones[1 - before.player] == before.stones[1 - before.player]
        assert (game.winner == before.player) == four_in(cells_of(board, game.stones[before.player]))
        heights[move] += 1
    assert game.winner is not None or sum(heights.values()) == board.rows * board.columns


def test_the_board_reads_so():
    game = played("4455", BoardGeometry(4, 5))
    assert board_text(game, 0) == "_ _ _ _ _\n_ _ _ 4 5\n_ _ _ O O\n1 2 3 X X"
    assert board_text(game, 1) == "_ _ _ _ _\n_ _ _ 4 5\n_ _ _ X X\n1 2 3 O O"
    assert board_text(game.after("3").after("1").after("2"), 0).endswith("\n_ _ _ O O\nO X X X X")


def test_full_and_missing_columns_and_ended_games_take_no_piece():
    wrong = [("111111", move) for move in ("1", "0", "8", "", "11")]
    for moves, move in [*wrong, ("1122334", "5")]:
        with pytest.raises(ValueError):
            played(moves).after(move)


@pytest.mark.parametrize(
    ("board", "depths", "seeds"),
    [(BoardGeometry(6, 7), (1, 2, 3), 40), (BoardGeometry(4, 5), (4,), 120), (BoardGeometry(4, 4), (5, 6), 40)],
)
def test_the_search_sees_what_playing_every_move_shows(board, depths, seeds):
    for seed in range(seeds * SOAK):
        game = random_game(board, seed, plies=3 + seed % (board.rows * 2))
        mine, theirs = game.stones[game.player], game.stones[1 - game.player]
        threatened = any(four_in(cells_of(board, theirs | cell)) for cell in landing_cells(game))
        for depth in depths if game.moves else ():
            scores = {move: plain_after(game, move, depth) for move in game.moves}
            best = {move for move, score in scores.items() if score == max(scores.values())}
            found = set(best_moves(game, depth))
            assert found and (found <= best if threatened else found == best)
            if plain(game, 1) == 0:
                assert look_ahead(board, mine, theirs, depth, -depth, depth) == max(scores.values())


def landing_cells(game):
    return [cell for row in game.board.by_rows for cell, _ in row if game.landing & cell]


def test_depth_is_what_it_looks_ahead():
    assert best_moves(played("112233"), 1) == ("4",), "one ply: a win at hand"
    assert len(best_moves(played("11223"), 1)) == 7, "one ply does not see the threat"
    assert best_moves(played("11223"), 2) == ("4",), "two plies see it"
    assert len(best_moves(played("3343"), 2)) > 2
    assert set(best_moves(played("3343"), 3)) == {"2", "5"}, "three plies see that three with two open ends win"


def test_a_lost_player_still_blocks_and_equal_moves_are_named_from_the_middle():
    assert best_moves(played("33445"), 4) == ("2", "6")
    assert best_moves(ConnectFourGame(BoardGeometry(6, 7)), 4) == ("4", "3", "5", "2", "6", "1", "7")


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_the_solver_beats_the_opponent_within_the_limits(strength):
    results = Counter()
    for seed in range(25 * SOAK):
        env = ConnectFour({"strength": strength}, rng=stream("luck", seed))
        env.reset(stream("start", seed))
        turns = 1
        while not (end := env.step(env.solve()[0])).over:
            turns += 1
        assert turns <= 21
        results[end.reward] += 1
    assert results[1.0] >= (0.9 if strength == 1 else 0.95) * 25 * SOAK


def test_a_draw_pays_half_and_is_success_only_if_told_so():
    draws = [
        game for seed in range(300) if not (game := random_game(BoardGeometry(4, 4), seed, 15)).moves[1:] and game.moves
    ]
    draws = [game for game in draws if game.player == 1 and game.after(game.moves[0]).winner is None]
    for told in (False, True):
        env = ConnectFour({"rows": 4, "columns": 4, "draw_is_success": told})
        env.side, env.game = 1, draws[0]
        end = env.step(draws[0].moves[0])
        assert (end.over, end.reward, end.success) == (True, 0.5, told) and end.text.endswith("\nA draw.")


def test_size_changes_board_moves_and_prompt_alike():
    for rows, columns in ((4, 4), (5, 8), (8, 5)):
        env = ConnectFour({"rows": rows, "columns": columns, "begins": "agent"})
        lines = env.reset(stream(0)).split("\n")
        assert len(lines) == rows and all(len(line.split()) == columns for line in lines)
        assert lines[-1].split() == list(env.action_names) and len(env.action_names) == columns
    runner = KIND.make(Task(env="connect_four", seed=0, params={"columns": 5}))
    assert runner.env.action_names == ("1", "2", "3", "4", "5")


def test_a_large_board_needs_more_turns():
    with pytest.raises(UserError, match="a game can take 32 moves of yours"):
        KIND.check_params({"rows": 8, "columns": 8})
    assert KIND.check_params({"rows": 8, "columns": 8, "max_turns": 32})["depth"] == 4


def test_the_opponent_and_the_solver_look_as_far_as_each_is_told(monkeypatch):
    asked = []
    monkeypatch.setattr("turnwise.envs.connect_four.env.best_moves", lambda game, depth: asked.append(depth) or ("4",))
    env = ConnectFour({"begins": "agent", "strength": 1, "depth": 3, "solver_depth": 5})
    env.reset(stream(0))
    env.solve()
    env.step("4")
    assert asked == [5, 3]
