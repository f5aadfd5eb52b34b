"""Observations as text, image or both, of all environments that draw their state."""

import asyncio
import copy
import io
import pickle
import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image as PillowImage

import turnwise as tw
from turnwise.core.errors import EnvironmentFailure
from turnwise.core.messages import ImagePart, Picture, TextPart, assistant
from turnwise.core.task import Task
from turnwise.envs.picture_env import VisualEnv
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.spec import EnvSpec
from turnwise.pictures import observation
from turnwise.pictures.observation import draw_observation

NAMES = ("frozen_lake", "sokoban", "sudoku", "game_2048", "rubiks_cube", "connect_four", "tic_tac_toe")
"""Environments whose state is a grid."""


def run(spec: EnvSpec, params: dict[str, Any], *answers: str) -> list[tw.Message]:
    """Return the observations of an episode with these answers, without the system message."""

    async def play() -> list[tw.Message]:
        runner = spec.make(Task(env=spec.name, seed=3, params=spec.check_params(params)))
        found = [(await runner.start()).messages[-1]]
        for answer in answers:
            found += (await runner.step(assistant(f"<answer>{answer}</answer>"))).messages
        return found

    return asyncio.run(play())


def system_text(spec: EnvSpec, params: dict[str, Any]) -> str:
    runner = spec.make(Task(env=spec.name, seed=3, params=spec.check_params(params)))
    return asyncio.run(runner.start()).messages[0].content


def legal_action(spec: EnvSpec) -> str:
    env = spec.make(Task(env=spec.name, seed=3, params=spec.check_params({}))).env
    assert isinstance(env, VisualEnv)
    env.reset(random.Random(0))
    return env.random_action(random.Random(0)) or ""


@pytest.mark.parametrize("name", [*NAMES, "web_shop"])
def test_observation_image_shows_the_same_state_as_text(name: str) -> None:
    spec = load_spec(name)
    action = legal_action(spec)
    text = run(spec, {}, action)
    image = run(spec, {"observation": "image"}, action)
    both = run(spec, {"observation": "both"}, action)
    for as_text, as_image, as_both in zip(text, image, both, strict=True):
        assert not as_text.images and len(as_image.images) == 1
        assert as_image.images == as_both.images
        assert as_both.content.split() == as_text.content.split()
        assert len(as_image.content) < len(as_text.content)


@pytest.mark.parametrize("name", NAMES)
def test_observation_default_leaves_tasks_as_they_were(name: str) -> None:
    """A task's parameters address its randomness: new view parameters must not change recorded runs."""
    spec = load_spec(name)
    added = {"cell_pixels", "reasoning", "grounding_reward", "prediction_reward"}
    assert not added & set(spec.check_params({}))
    assert set(spec.check_params({"cell_pixels": 14, "reasoning": "both"})) >= {"cell_pixels", "reasoning"}
    assert spec.check_params({"cell_pixels": 28}) == spec.check_params({})


def test_observation_image_is_cell_pixels_per_cell() -> None:
    for pixels in (8, 28):
        (start,) = run(load_spec("frozen_lake"), {"observation": "image", "cell_pixels": pixels})
        assert PillowImage.open(io.BytesIO(start.images[0].data)).size == (4 * pixels, 4 * pixels)


def test_observation_images_differ_between_states() -> None:
    first, second = run(load_spec("game_2048"), {"observation": "image"}, "Left")
    assert first.images != second.images
    assert second.content.strip().startswith("Score")


def test_observation_image_rules_name_no_symbols() -> None:
    for name in (*NAMES, "web_shop"):
        spec = load_spec(name)
        assert "image shows" in system_text(spec, {"observation": "image"})
        assert "image shows" not in system_text(spec, {})


def test_sudoku_image_keeps_text_that_it_cannot_show() -> None:
    spec = load_spec("sudoku")
    _, illegal = run(spec, {"observation": "image"}, "1,1,1 || 1,1,2 || 1,1,3 || 1,1,4")
    assert isinstance(illegal.parts[-1], TextPart | ImagePart)
    texts = [run(spec, {"observation": kind}, legal_action(spec))[1].content for kind in ("text", "image")]
    assert ("Your cells" in texts[0]) == ("Your cells" in texts[1])


def test_sokoban_takes_text_for_its_grid() -> None:
    spec = load_spec("sokoban")
    assert spec.check_params({"observation": "text"}) == spec.check_params({})
    assert run(spec, {"observation": "coordinates"})[0].images == ()


class Camera(tw.TextEnv):
    """Name the colour."""

    max_turns = 2

    def reset(self, rng: random.Random) -> Any:
        return ["Look:", tw.Image(PillowImage.new("RGB", (4, 4), "red"))]

    def step(self, action: str) -> tw.Outcome:
        return tw.goes_on(tw.Image(PillowImage.new("RGB", (4, 4), action)))


def test_text_env_returns_images_with_text_around_them() -> None:
    start, second = run(spec_of(Camera), {}, "blue")
    assert [type(part) for part in start.parts] == [TextPart, tw.Image]
    assert [type(part) for part in second.parts] == [tw.Image]


def test_text_env_reports_problems_and_limits_around_an_image() -> None:
    start, invalid, last = run(spec_of(Camera), {}, "", "no colour")
    assert invalid.parts == (TextPart(text="Empty answer.\nLook:"), *start.images)
    assert last.content.startswith("Invalid action") and last.content.endswith("No turns left.")
    assert last.images == start.images


def observing(observation: Any) -> type[Camera]:
    class Wrong(Camera):
        def reset(self, rng: random.Random) -> Any:
            return observation

    return Wrong


class Huge(Camera):
    """Returns broken bytes."""

    def reset(self, rng: random.Random) -> Any:
        return tw.Image(b"\x89PNG")


@pytest.mark.parametrize(
    ("observation", "types"),
    [
        (["Look:", 3], "a list with a value of type int"),
        (("Look:", np.zeros((4, 4, 3), np.uint8)), "a tuple with a value of type ndarray"),
        (np.zeros((4, 4, 3), np.uint8), "a value of type ndarray"),
        (PillowImage.new("RGB", (4, 4)), "a value of type Image"),
        (b"PNG", "a value of type bytes"),
        ({"type": "image"}, "a value of type dict"),
    ],
)
def test_text_env_with_wrong_observation_names_its_type(observation: Any, types: str) -> None:
    with pytest.raises(EnvironmentFailure, match=rf"reset returned {types}: give text, a tw\.Image made of"):
        run(spec_of(observing(observation)), {})


def test_text_env_with_broken_image_fails_its_episode_in_one_line() -> None:
    with pytest.raises(EnvironmentFailure, match=r"^Huge\.reset: tw\.Image got 4 bytes that are not a PNG"):
        run(spec_of(Huge), {})


@pytest.mark.parametrize("cell_pixels", [7, 28])
def test_equal_cells_of_a_gridworld_have_equal_pixels(cell_pixels: int) -> None:
    rows = (("player", "hole", "ice"), ("ice", "goal", "player"), ("hole", "hole", "goal"))
    data = draw_observation(Picture(rows=rows), cell_pixels).data
    image, seen = PillowImage.open(io.BytesIO(data)), dict[str, set[bytes]]()
    assert image.size == (3 * cell_pixels, 3 * cell_pixels)
    for row, names in enumerate(rows):
        for column, name in enumerate(names):
            left, top = column * cell_pixels, row * cell_pixels
            cell = image.crop((left, top, left + cell_pixels, top + cell_pixels))
            seen.setdefault(name, set()).add(cell.tobytes())
    assert all(len(pixels) == 1 for pixels in seen.values())
    assert len(set.union(*seen.values())) == 4


@pytest.mark.parametrize("name", ["frozen_lake", "sokoban", "game_2048"])
def test_only_shown_states_are_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list[tuple[Any, ...]]()
    own = observation._draw.__wrapped__
    monkeypatch.setattr(observation, "_draw", lambda *state: drawn.append(state) or own(*state))
    spec = load_spec(name)
    params = {"observation": "image", "max_actions_per_turn": 5}
    seen = run(spec, params, "Left || Up || Right || Down")
    assert drawn == []
    assert [len(message.images[0].data) > 0 for message in seen] == [True, True] and len(drawn) == 2


def test_state_image_is_an_image_after_pickling() -> None:
    image = draw_observation(Picture(rows=(("player", "ice"),)), 8)
    again = pickle.loads(pickle.dumps(image))
    assert again == image == ImagePart(data=image.data) and hash(again) == hash(image)
    assert copy.deepcopy(image) == image != draw_observation(Picture(rows=(("ice", "player"),)), 8)


def test_ground_of_all_cells_is_ice_where_the_board_has_ice() -> None:
    lake, floor = (draw_observation(Picture(rows=(("player", other),)), 8).data for other in ("ice", "empty"))
    players = [PillowImage.open(io.BytesIO(data)).crop((0, 0, 8, 8)) for data in (lake, floor)]
    assert players[0].tobytes() != players[1].tobytes()
