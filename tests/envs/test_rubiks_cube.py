import asyncio
import os
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Task
from turnwise.envs.answers import format_answer
from turnwise.envs.rubiks_cube.cube import (
    COLOURS,
    FACES,
    MAX_DEPTH,
    MOVES,
    ORIENTATIONS,
    SOLVED,
    cubes_by_distance,
    is_solved,
    recolour,
    scramble,
    shortest_solution,
    turn_faces,
)
from turnwise.envs.rubiks_cube.env import RubiksCube
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.models.loading.tiny import tiny_tokenizer

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
KIND = EnvSpec(name="rubiks_cube", id="rubiks_cube", cls=RubiksCube)

some_moves = st.lists(st.sampled_from(tuple(MOVES)), max_size=12)


def start_runner(index=0, **params):
    """Return a started runner with its `opening`."""
    runner = KIND.make(Task(env=KIND.name, seed=seed_for("train", index), params=params))
    runner.opening = asyncio.run(runner.start())
    return runner


def make_env(*moves, **params):
    env = RubiksCube(params, rng=random_stream("test"))
    env.cube = turn_faces(SOLVED, *moves)
    return env


def inverse(move):
    return move[0] if move.endswith("'") else f"{move}'"


def face(state, name):
    first = 4 * list(FACES).index(name)
    return state[first : first + 4]


def as_answers(actions, per_turn=5):
    return [format_answer(actions[i : i + per_turn]) for i in range(0, len(actions), per_turn)]


def test_moves_turn_each_face_both_ways():
    assert sorted(MOVES) == sorted(f"{face}{mark}" for face in "UDLRFB" for mark in ("", "'"))
    assert RubiksCube.action_names == tuple(MOVES)


@pytest.mark.parametrize(
    ("move", "circle", "rows"),
    [
        ("U", "FLBR", {"F": (0, 1), "L": (0, 1), "B": (0, 1), "R": (0, 1)}),
        ("D", "FRBL", {"F": (2, 3), "R": (2, 3), "B": (2, 3), "L": (2, 3)}),
        ("R", "FUBD", {"F": (1, 3), "U": (1, 3), "B": (2, 0), "D": (1, 3)}),
        ("L", "FDBU", {"F": (0, 2), "D": (0, 2), "B": (3, 1), "U": (0, 2)}),
        ("F", "URDL", {"U": (2, 3), "R": (0, 2), "D": (1, 0), "L": (3, 1)}),
        ("B", "ULDR", {"U": (1, 0), "L": (0, 2), "D": (2, 3), "R": (3, 1)}),
    ],
)
def test_turn_moves_adjacent_rows_to_the_next_face(move, circle, rows):
    """Uses a cube with 24 distinct stickers; `rows` are in the order in which a turn moves one to the next."""
    start = tuple(f"{name}{place}" for name in FACES for place in range(4))
    turned = turn_faces(start, move)
    for source, goal in zip(circle, circle[1:] + circle[0], strict=True):
        for old, new in zip(rows[source], rows[goal], strict=True):
            assert face(turned, goal)[new] == f"{source}{old}"
    assert face(turned, move) == tuple(f"{move}{place}" for place in (2, 0, 3, 1)), "clockwise, seen from outside"
    opposite = {"U": "D", "R": "L", "F": "B"}
    opposite |= {b: a for a, b in opposite.items()}
    assert face(turned, opposite[move]) == face(start, opposite[move])


@given(some_moves)
def test_inverse_moves_restore_the_state(moves):
    state = turn_faces(SOLVED, *moves)
    assert Counter(state) == Counter(SOLVED)
    assert turn_faces(state, *(inverse(move) for move in reversed(moves))) == SOLVED


@pytest.mark.parametrize("name", FACES)
def test_four_turns_of_a_face_are_the_identity(name):
    assert turn_faces(SOLVED, name) != turn_faces(SOLVED, name, name) != SOLVED
    assert turn_faces(SOLVED, name, name, name) == turn_faces(SOLVED, f"{name}'")
    assert turn_faces(SOLVED, *[name] * 4) == SOLVED


def test_commutator_has_order_six():
    states = [turn_faces(SOLVED, *("R", "U", "R'", "U'") * rounds) for rounds in range(1, 7)]
    assert [is_solved(state) for state in states] == [False] * 5 + [True]


def test_is_solved_in_any_orientation():
    assert len(set(ORIENTATIONS)) == 24 and all(map(is_solved, ORIENTATIONS))
    assert is_solved(turn_faces(SOLVED, "U", "D'")) and not is_solved(turn_faces(SOLVED, "U", "D"))
    assert is_solved(turn_faces(SOLVED, "R", "L'")) and is_solved(turn_faces(SOLVED, "F", "B'"))
    for orientation in ORIENTATIONS:
        opposites = {frozenset((face(orientation, a)[0], face(orientation, b)[0])) for a, b in ("UD", "LR", "FB")}
        assert opposites == {frozenset(pair) for pair in (COLOURS[:2], COLOURS[2:4], COLOURS[4:])}


def test_is_solved_rejects_one_wrong_sticker():
    for place in range(24):
        state = list(SOLVED)
        state[place] = "white" if SOLVED[place] != "white" else "red"
        assert not is_solved(tuple(state))


def test_counts_by_distance_match_the_literature():
    assert [len(ring) for ring in cubes_by_distance()] == [1, 6, 27, 120, 534, 2256, 8969]


def distance(state):
    return len(shortest_solution(state, max_moves=99))


@given(some_moves, st.sampled_from(ORIENTATIONS))
def test_solution_is_no_longer_than_the_scramble(moves, orientation):
    state = recolour(turn_faces(SOLVED, *moves), dict(zip(SOLVED, orientation, strict=True)))
    solution = shortest_solution(state, max_moves=len(moves))
    assert is_solved(turn_faces(state, *solution))
    assert len(solution) <= len(moves) and (len(moves) - len(solution)) % 2 == 0
    assert solution == [] or shortest_solution(state, max_moves=len(solution) - 1) is None


@given(st.lists(st.sampled_from(tuple(MOVES)), max_size=8), st.sampled_from(tuple(MOVES)))
def test_turn_changes_the_distance_by_at_most_one(moves, move):
    state = turn_faces(SOLVED, *moves)
    assert abs(distance(turn_faces(state, move)) - distance(state)) == 1


def test_solver_works_beyond_the_distance_table():
    rng = random.Random(1)
    for _ in range(3):
        state = turn_faces(SOLVED, *rng.choices(tuple(MOVES), k=40))
        solution = shortest_solution(state, max_moves=14)
        assert len(solution) > MAX_DEPTH and is_solved(turn_faces(state, *solution)), "14 turns solve every 2x2 cube"
        assert shortest_solution(state, max_moves=len(solution)) == solution
        assert shortest_solution(state, max_moves=len(solution) - 1) is None


@pytest.mark.parametrize("depth", range(1, MAX_DEPTH + 1))
def test_scramble_has_the_exact_depth(depth):
    states = [scramble(random_stream(depth, seed), depth=depth) for seed in range(40 * SOAK)]
    assert {distance(state) for state in states} == {depth}
    assert len(set(states)) > 25
    assert len({face(state, "D")[2] for state in states}) == 6, "held in all ways"


@pytest.mark.parametrize("params", [{}, {"min_depth": 6}, {"max_depth": 2}, {"max_actions": 4}])
def test_solver_wins_every_cube(steps, params):
    for index in range(80 * SOAK):
        runner = start_runner(index, **params)
        actions = runner.env.solve()
        assert params.get("min_depth", 1) <= len(actions) <= runner.env.effective_max_depth
        results = steps(runner, as_answers(actions))
        assert [result.reward for result in results] == [0.0] * (len(results) - 1) + [1.0]
        assert results[-1].success and results[-1].terminated and not results[-1].invalid


def test_depths_are_drawn_uniformly():
    depths = Counter(len(start_runner(index, min_depth=2, max_depth=5).env.solve()) for index in range(400))
    assert set(depths) == {2, 3, 4, 5} and all(70 < count < 130 for count in depths.values())


def test_depths_respect_the_action_limits():
    limits = {"max_turns": 1, "max_actions_per_turn": 3}
    assert start_runner(**limits).env.effective_max_depth == 3
    assert {len(start_runner(index, **limits).env.solve()) for index in range(40)} == {1, 2, 3}
    with pytest.raises(UserError, match="min_depth 4 needs as many actions, and the limits allow 3") as caught:
        start_runner(min_depth=4, max_actions=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"min_depth": 4, "max_depth": 3}, "min_depth 4 is above max_depth 3"),
        ({"max_depth": 7}, "env.params.max_depth"),
        ({"min_depth": 0}, "env.params.min_depth"),
        ({"depth": 3}, "did you mean"),
    ],
)
def test_invalid_parameters_are_rejected(params, line):
    with pytest.raises(UserError, match=line) as caught:
        KIND.check_params(params)
    assert "\n" not in str(caught.value)


def test_only_a_solved_cube_pays_and_ends():
    env = make_env("R", "U", solved_reward=3.0)
    first = env.step("U'")
    assert (first.reward, first.over) == (0.0, False)
    assert env.solve() == ["R'"]
    last = env.step("L'")
    assert last.over and last.success and last.reward == 3.0, "L' and R' are the same but for how the cube is held"


def test_text_state_and_picture_show_the_same_faces():
    env = make_env("R")
    assert env.state_key() == (
        "U white green white green\nD yellow blue yellow blue\nL orange orange orange orange\n"
        "R red red red red\nF green yellow green yellow\nB white blue white blue"
    )
    cells = [[name[0] if name != "empty" else " " for name in row] for row in env.draw().rows]
    assert ["".join(row) for row in cells] == ["  wg    ", "  wg    ", "oogyrrwb", "oogyrrwb", "  yb    ", "  yb    "]
    assert env.step("U").text == env.state_key()


def test_prompt_states_depths_faces_actions_and_limits():
    prompt = start_runner().opening.messages[0].content
    assert "You can solve it in 1 to 6 moves." in prompt
    assert "U top, D bottom, L left, R right, F front, B back." in prompt
    assert "Actions: U, U', D, D', L, L', R, R', F, F', B, B'." in prompt
    assert "At most 5 actions a turn; at most 5 turns and 10 actions in all." in prompt
    assert len(prompt.split()) <= 120
    other = start_runner(min_depth=2, max_actions_per_turn=1, max_turns=3).opening.messages[0].content
    assert "in 2 to 3 moves." in other and "1 action a turn; at most 3 turns and 10 actions in all." in other
    assert "solve it in 4 moves." in start_runner(min_depth=4, max_depth=4).opening.messages[0].content
    assert len({start_runner(index).opening.messages[0].content for index in range(5)}) == 1


HOSTILE = ["", "u2", "U U", "R’", "R''", "X", "U" * 10**6, "\x00", "__import__('os')", "9" * 10**6, "front"]


@pytest.mark.parametrize("action", HOSTILE, ids=range(len(HOSTILE)))
def test_invalid_action_changes_nothing(steps, action):
    runner = start_runner()
    before = runner.env.cube
    (result,) = steps(runner, [f"<answer>{action}</answer>"])
    assert result.invalid and result.reward == 0.0 and runner.env.cube == before


def test_actions_ignore_case(steps):
    runner = start_runner(min_depth=6)
    before = runner.env.cube
    (result,) = steps(runner, ["<answer>r' || F</answer>"])
    assert not result.invalid and runner.env.cube == turn_faces(before, "R'", "F")


def test_faces_colours_and_moves_are_single_tokens():
    tokenizer = tiny_tokenizer()
    for word in [*COLOURS, *MOVES]:
        for text in (word, f" {word}"):
            assert len(tokenizer.encode(text, add_special_tokens=False)) == 1, text
    assert len(tokenizer.encode(make_env("R", "U").state_key(), add_special_tokens=False)) == 6 * 5 + 5


def test_random_play_ends_within_the_limits(steps):
    for index in range(30):
        runner, rng = start_runner(index), random.Random(index)
        results = steps(runner, [runner.env.random_answer(rng) for _ in range(5)])
        assert results[-1].over and sum(len(result.info["actions"]) for result in results) <= 10
