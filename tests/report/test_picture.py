import asyncio
import random
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.messages import Picture, assistant
from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.pictures.boards import (
    choose_board,
    draw_2048,
    draw_connect_four,
    draw_cube,
    draw_sudoku,
    draw_tic_tac_toe,
)
from turnwise.pictures.gridworlds import CELL, CELLS
from turnwise.pictures.picture import MAX_CELLS, MAX_SIDE, draw_picture, draw_picture_svg
from turnwise.pictures.shapes import Ellipse, Label, Polylines
from work_for_tests import count_lines

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {"svg", "rect", "ellipse", "path", "text"}
"""The elements of a picture; none of them loads or runs anything."""


def row(rows: Any, caption: Any = "", info: Any = None) -> dict[str, Any]:
    return {"rows": rows, "caption": caption, "info": {} if info is None else info}


def parsed(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= DRAWN
    return root


def texts(svg: str) -> list[str | None]:
    return [element.text for element in parsed(svg).iter(f"{SVG}text")]


def pictures_of(name: str, turns: int = 6, **params: Any) -> list[Picture]:
    """Return the states of an episode with random actions."""

    async def play() -> list[Picture]:
        runner = load_spec(name).make(Task(env=name, seed=5, params=params))
        opening = await runner.start()
        found = [opening.picture]
        rng = random.Random(1)
        for _ in range(turns):
            action = runner.env.random_action(rng)
            step = await runner.step(assistant(f"<answer>{action}</answer>"))
            found.append(step.picture)
            if step.over:
                break
        return [picture for picture in found if picture is not None]

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("name", "params", "board"),
    [
        ("tic_tac_toe", {}, draw_tic_tac_toe),
        ("tic_tac_toe", {"begins": "agent"}, draw_tic_tac_toe),
        ("connect_four", {"begins": "agent"}, draw_connect_four),
        ("connect_four", {"rows": 5, "columns": 6, "max_turns": 20}, draw_connect_four),
        ("sudoku", {}, draw_sudoku),
        ("sudoku", {"size": 9}, draw_sudoku),
        ("game_2048", {}, draw_2048),
        ("rubiks_cube", {}, draw_cube),
        ("sokoban", {}, None),
        ("frozen_lake", {}, None),
        ("bandit", {}, None),
        ("countdown", {}, None),
    ],
)
def test_draw_picture_recognises_the_board_of_each_environment(name: str, params: dict[str, Any], board: Any) -> None:
    found = pictures_of(name, **params)
    assert found
    for picture in found:
        assert choose_board(picture.rows, picture.caption) is board
        parsed(draw_picture_svg({"rows": picture.rows, "caption": picture.caption, "info": picture.info}))


@pytest.mark.parametrize("name", ["sokoban", "frozen_lake"])
def test_gridworlds_know_every_cell_of_their_environments(name: str) -> None:
    for picture in pictures_of(name):
        assert {cell for cells in picture.rows for cell in cells} <= set(CELLS)


def without_colour(svg: str) -> str:
    return re.sub(r"#[0-9a-f]{6}", "#", svg)


def test_gridworld_cells_differ_without_colour() -> None:
    """Compare shapes only; the title with the names is cut off."""
    shapes = {
        name: without_colour(draw_picture_svg(row([[name, "wall"]]))).split("stroke-linecap", 1)[1] for name in CELLS
    }
    for first in shapes:
        for second in shapes:
            assert first == second or shapes[first] != shapes[second], (first, second)


def test_gridworld_draws_cells_at_their_positions() -> None:
    drawing = draw_picture(row([["empty", "target", "wall"], ["empty", "empty", "wall"]]))
    rings = [shape for shape in drawing.shapes if isinstance(shape, Ellipse) and shape.fill is None]
    assert [(ring.x, ring.y) for ring in rings] == [(1.5 * CELL, 0.5 * CELL)]
    assert (drawing.width, drawing.height) == (3 * CELL, 2 * CELL)


def test_sudoku_draws_digits_and_thick_box_lines() -> None:
    rows = [["empty"] * 4 for _ in range(4)]
    rows[1][2] = "3"
    drawing = draw_picture(row(rows))
    assert [(s.text, s.x, s.y) for s in drawing.shapes if isinstance(s, Label)] == [("3", 2.5 * CELL, 1.5 * CELL)]
    thick = max((s for s in drawing.shapes if isinstance(s, Polylines)), key=lambda lines: lines.thickness)
    assert sorted({path[0][0] for path in thick.paths if path[0][0] == path[1][0]}) == [0, 2 * CELL, 4 * CELL]


def test_tic_tac_toe_draws_crosses_and_rings() -> None:
    rows = [["you", "2", "opponent"], ["4", "5", "6"], ["7", "8", "9"]]
    shapes = draw_picture(row(rows)).shapes
    rings = [shape for shape in shapes if isinstance(shape, Ellipse)]
    crosses = [shape for shape in shapes if isinstance(shape, Polylines)][1:]
    assert [(ring.x, ring.y) for ring in rings] == [(2.5 * CELL, 0.5 * CELL)]
    assert [all(x < CELL and y < CELL for path in lines.paths for x, y in path) for lines in crosses] == [True]
    assert [shape.text for shape in shapes if isinstance(shape, Label)] == ["2", "4", "5", "6", "7", "8", "9"]


def test_2048_and_cube_label_their_cells() -> None:
    assert texts(draw_picture_svg(row([["2", "empty"], ["1024", "empty"]], "Score 12"))) == ["2", "1024", "Score 12"]
    assert texts(draw_picture_svg(row([["white", "empty"], ["red", "blue"]]))) == ["W", "R", "B"]


def test_unknown_cells_are_drawn_as_text() -> None:
    assert texts(draw_picture_svg(row([["Teacher", "Trader"]], "paid 0.3"))) == ["Teacher", "Trader", "paid 0.3"]
    assert texts(draw_picture_svg(row([["wall", "golden_key"]]))) == ["golden", "key"]


def test_draw_picture_escapes_markup() -> None:
    hostile = "<script>alert(1)</script>"
    svg = draw_picture_svg(row([[hostile, '"><img src=x onerror=alert(1)>']], "</svg><b>", {'a"b': "]]>&amp;"}))
    assert "<script" not in svg and "<img" not in svg and "<b>" not in svg
    shown = "".join(text or "" for text in texts(svg))
    assert "<script>alert(1)</script>" in shown and "]]>&amp;" in shown


def test_draw_picture_removes_control_characters() -> None:
    svg = draw_picture_svg(row([["a\x1b[31mb\u202ec\x00\ud800d"]], "\u2066x"))
    assert not set(svg) & set("\x1b\u202e\x00\ud800\u2066")
    parsed(svg)


def test_draw_picture_keeps_cjk_emoji_and_box_drawing() -> None:
    assert "它是动物吗？" in texts(draw_picture_svg(row([["它是动物吗？", "はい 👩‍🚀", "예"]])))
    assert "はい 👩‍🚀" in texts(draw_picture_svg(row([["はい 👩‍🚀"]])))
    board = "┌──┬──┐\n│ a│  │\n└──┴──┘"
    assert texts(draw_picture_svg(row([[board]]))) == board.split("\n")


def test_draw_picture_replaces_a_huge_picture_by_a_note() -> None:
    line = ["wall"] * 10_000
    assert count_lines(lambda: draw_picture_svg(row([line] * 10_000))) < 100_000, "cells are not visited"
    svg = draw_picture_svg(row([line] * 10_000))
    assert len(svg) < 1000
    assert texts(svg) == ["10000 x 10000 cells, too large to draw"]


@pytest.mark.parametrize(("height", "width"), [(MAX_SIDE + 1, 1), (1, MAX_SIDE + 1), (40, 40)])
def test_draw_picture_limits_both_sides(height: int, width: int) -> None:
    assert texts(draw_picture_svg(row([["x"] * width] * height))) == [f"{height} x {width} cells, too large to draw"]


@pytest.mark.parametrize(
    "picture", [{}, row(None), row([]), row([[]]), row("wall"), row([["x" * 10**6]]), row([[10**400, 1.5, None, {}]])]
)
def test_draw_picture_tolerates_invalid_pictures(picture: dict[str, Any]) -> None:
    svg = draw_picture_svg(picture)
    parsed(svg)
    assert len(svg) < 20_000


cells = st.one_of(
    st.sampled_from([*CELLS, "you", "opponent", "white", "red", "1", "2", "4", "9", "1024"]),
    st.text(max_size=30),
    st.none() | st.integers() | st.floats() | st.lists(st.integers(), max_size=2),
)


@given(
    rows=st.lists(st.lists(cells, max_size=6) | cells, max_size=6),
    caption=st.text(max_size=200) | st.none() | st.integers(),
    info=st.dictionaries(st.text(max_size=9), cells, max_size=12) | st.none(),
)
def test_draw_picture_is_small_and_well_formed_for_any_input(rows: Any, caption: Any, info: Any) -> None:
    svg = draw_picture_svg({"rows": rows, "caption": caption, "info": info})
    parsed(svg)
    assert len(svg) < 60_000


def test_draw_picture_bounds_the_size_of_the_svg() -> None:
    side = int(MAX_CELLS**0.5)
    assert side <= MAX_SIDE
    assert len(draw_picture_svg(row([["player_in_hole"] * side] * side))) < 1_500_000
