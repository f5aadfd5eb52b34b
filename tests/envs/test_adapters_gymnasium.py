"""Gymnasium's own environments in words."""

import asyncio
import io
import random
from importlib import import_module

import pytest
from PIL import Image as PillowImage

from turnwise.core.errors import UserError
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.adapters.package_envs import GymnasiumEnv
from turnwise.envs.adapters.process import end_processes
from turnwise.envs.answers import format_answer
from turnwise.envs.registry import spec_of

LAKE = {"id": "FrozenLake-v1", "options": {"is_slippery": False}}
RANDOM_LAKE = {"id": "FrozenLake-v1", "options": {"is_slippery": False, "map_name": "random", "size": 5}}


@pytest.fixture(autouse=True, scope="module")
def installed(optional_part) -> None:
    if spec_of(GymnasiumEnv).install_command:
        optional_part(f"a package is missing: {spec_of(GymnasiumEnv).install_command}")


def begun(seed=0, member=0, **params):
    kind = spec_of(GymnasiumEnv)
    runner = kind.make(Task(env=kind.name, seed=seed, params=params), member=member)
    runner.opening = asyncio.run(runner.start())
    return runner


def acted(runner, *actions):
    return [asyncio.run(runner.step(assistant(format_answer([action])))) for action in actions]


@pytest.mark.parametrize(
    ("params", "reward"),
    [({}, None), ({"id": "CliffWalking-v1"}, -13.0), (LAKE, 1.0), (RANDOM_LAKE, 1.0)],
    ids=["taxi", "cliff", "lake", "random lake"],
)
def test_gymnasium_shortest_solution_has_the_known_reward(params, reward) -> None:
    for seed in range(6):
        runner = begun(seed, **params)
        way = runner.env.solve()
        results = acted(runner, *way)
        assert results[-1].success and results[-1].terminated and not any(each.over for each in results[:-1])
        total = sum(each.reward for each in results)
        assert total == (21 - len(way) if reward is None else reward)


def test_taxi_observation_follows_the_actions() -> None:
    runner = begun(1)
    before = runner.env.text
    row, column = map(int, before.split(";")[0].removeprefix("taxi ").split(","))
    (moved,) = acted(runner, "South" if row < 4 else "North")
    assert moved.messages[0].content.startswith(f"taxi {row + 1 if row < 4 else row - 1},{column};")
    assert moved.reward == -1 and "passenger" in before and "goal" in before
    (wrong,) = acted(runner, "Dropoff")
    assert wrong.reward == -10 and not wrong.over, "as Gymnasium rewards it"
    way = runner.env.solve()
    texts = [each.messages[0].content for each in acted(runner, *way)]
    assert any("in the taxi" in text for text in texts)


def test_grid_observations_show_the_player() -> None:
    runner = begun(id="CliffWalking-v1")
    assert runner.env.text.split("\n")[3] == "x C C C C C C C C C C T"
    (fallen,) = acted(runner, "Right")
    assert fallen.reward == -100 and not fallen.over and fallen.messages[0].content == runner.env.text
    lake = begun(**LAKE)
    assert lake.env.text == "P F F F\nF H F H\nF F F H\nH F F G"
    (right, hole) = acted(lake, "Right", "Down")
    assert right.messages[0].content.startswith("S P F F") and hole.terminated and not hole.success


def test_gymnasium_invalid_actions_cost_as_much_as_a_step() -> None:
    assert [acted(begun(id=id), "Fly")[0].reward for id in ("Taxi-v4", "CliffWalking-v1", "Blackjack-v1")] == [
        -1,
        -1,
        0,
    ]
    (result,) = acted(begun(invalid_reward=-3.0), "Fly")
    assert result.invalid and result.reward == -3


@pytest.mark.parametrize(("name", "symbol"), [("FrozenLake-v1", "H hole"), ("CliffWalking-v1", "x you")])
def test_gymnasium_rules_explain_symbols_that_are_shown(name: str, symbol: str) -> None:
    pytest.importorskip("PIL")
    pytest.importorskip("pygame")
    shown = {form: symbol in begun(id=name, observation=form).env.rules() for form in ("text", "image", "both")}
    assert shown == {"text": True, "image": False, "both": True}


def test_gymnasium_rules_describe_randomness() -> None:
    assert "chance 0.33" in begun(id="FrozenLake-v1").env.rules()
    assert "chance 0.8," in begun(options={"is_rainy": True}).env.rules()
    assert "slippery" in begun(id="CliffWalkingSlippery-v1").env.rules()
    assert "slippery" not in begun(**LAKE).env.rules() + begun(id="CliffWalking-v1").env.rules()


def test_gymnasium_members_slip_independently() -> None:
    walks = {
        tuple(each.messages[0].content for each in acted(begun(member=member, id="FrozenLake-v1"), "Right", "Right"))
        for member in range(12)
    }
    assert len(walks) > 2


def test_random_lake_depends_on_the_seed() -> None:
    maps = [begun(seed, **RANDOM_LAKE).env.text for seed in range(8)]
    assert len(set(maps)) > 4 and maps == [begun(seed, **RANDOM_LAKE).env.text for seed in range(8)]
    assert all(len(text.split("\n")) == 5 for text in maps)


def test_blackjack_basic_play_beats_random_play() -> None:
    """Basic: hit below 17, or below 12 against a weak card of the dealer's."""

    def total(text: str) -> int:
        return int(text.split("your sum ")[1].split(";")[0].split(",")[0])

    def wins(choose) -> int:
        won = 0
        for seed in range(100):
            runner = begun(seed, id="Blackjack-v1", max_turns=12)
            while not (result := acted(runner, choose(runner.env.text, seed))[0]).over:
                pass
            won += result.success
            assert result.success == (result.reward > 0)
        return won

    basic = wins(lambda text, _: "Hit" if total(text) < (12 if text[-1] in "23456" else 17) else "Stick")
    assert wins(lambda text, seed: random.Random(f"{seed}{text}").choice(["Hit", "Stick"])) + 5 < basic < 60


def test_gymnasium_start_states_fit_the_limits() -> None:
    ways = [len(begun(seed, max_turns=9).env.solve()) for seed in range(10)]
    assert max(ways) <= 9 < max(len(begun(seed).env.solve()) for seed in range(10))
    with pytest.raises(UserError, match=r"^env\.params\.max_turns: .*: raise it\.$"):
        begun(id="CliffWalking-v1", max_turns=12)


def test_gymnasium_shows_unknown_environments_as_numbers() -> None:
    runner = begun(id="CartPole-v1")
    assert runner.env.action_names == ("0", "1") and len(runner.env.text.split(", ")) == 4
    assert acted(runner, "1")[0].reward == 1
    named = begun(id="CartPole-v1", actions=["Left", "Right"])
    speed = [float(named.env.text.split(", ")[1]), *(_speed(each) for each in acted(named, "Right", "Left", "Left"))]
    assert speed[0] < speed[1] > speed[2] > speed[3] and acted(named, "1")[0].invalid


def _speed(result) -> float:
    return float(result.messages[0].content.split(", ")[1])


def test_gymnasium_success_at_decides_success() -> None:
    runner = begun(**LAKE, success_at=2.0)
    assert runner.env.solve() is None
    (result,) = acted(runner, "Down", "Down", "Right", "Down", "Right", "Right")[-1:]
    assert result.terminated and not result.success


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"id": "Taxi-v99"}, "version"),
        ({"id": "Taxxi-v4"}, "Taxi"),
        ({"id": "no_such_module_of_ours:X-v0"}, "no_such_module_of_ours"),
        ({"id": "Pendulum-v1"}, "not discrete"),
        ({"options": {"wet": True}}, "rejects these options"),
        ({"actions": ["a", "b"]}, "has 6 actions"),
        ({"actions": ["a"] * 6}, "has 6 actions"),
    ],
    ids=str,
)
def test_adapter_explains_unsupported_settings(params, line) -> None:
    with pytest.raises(UserError, match=line) as caught:
        begun(**params)
    assert "\n" not in str(caught.value)


def test_gymnasium_reuse_keeps_no_state() -> None:
    first = begun(3)
    opening = first.env.text
    way = first.env.solve()
    acted(first, *way[:3])
    del first
    again = begun(3)
    assert again.env.text == opening and again.env.solve() == way
    beside = begun(3)
    side_by_side = [(acted(again, action)[0], acted(beside, action)[0]) for action in way]
    assert all(one.reward == other.reward for one, other in side_by_side), "and two that live share nothing"
    assert all(each.success for each in side_by_side[-1])


COLOURED = """
import gymnasium

class Coloured(gymnasium.Env):
    metadata = {"render_modes": ["ansi"]}
    action_space = gymnasium.spaces.Discrete(2, start=5)
    observation_space = gymnasium.spaces.Discrete(3)
    def __init__(self, render_mode=None):
        self.render_mode = render_mode
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return 0, {}
    def step(self, action):
        self.at += {5: -1, 6: 1}[int(action)]
        return self.at, 0.5, self.at == 2, self.at < -1, {}
    def render(self):
        return "".join(f"\\x1b[4{n + 1};1mo\\x1b[0m" if n == self.at else "_" for n in range(3))

gymnasium.register("Coloured-v0", Coloured, max_episode_steps=1)
"""


def test_gymnasium_loads_modules_and_names_colours(tmp_path, monkeypatch) -> None:
    (tmp_path / "coloured_env.py").write_text(COLOURED)
    monkeypatch.syspath_prepend(str(tmp_path))
    end_processes()  # the next one finds the module
    runner = begun(id="coloured_env:Coloured-v0")
    assert runner.env.action_names == ("5", "6") and runner.env.text == "[red o]__"
    first, last = acted(runner, "6", "6")
    assert first.messages[0].content == "_[green o]_" and not first.over, "no limit but the prompt's"
    assert last.success and last.reward == 0.5
    cut = begun(id="coloured_env:Coloured-v0")
    assert [each.over for each in acted(cut, "5", "5")] == [False, True]


def test_gymnasium_images_show_the_state_at_the_given_size() -> None:
    pytest.importorskip("minigrid")
    runner = begun(1, id="MiniGrid-Empty-5x5-v0", observation="image", image_side=64)
    first = runner.opening.messages[-1]
    assert PillowImage.open(io.BytesIO(first.images[0].data)).size == (64, 64)
    assert first.content.strip() == "mission: get to the green goal square"
    turned, moved = acted(runner, "left", "left")
    states = [first.images[0], turned.messages[0].images[0], moved.messages[0].images[0]]
    assert len(set(states)) == 3 and len({turned.info["state"], moved.info["state"]}) == 2
    again = begun(1, id="MiniGrid-Empty-5x5-v0", observation="image", image_side=64)
    assert again.opening.messages[-1] == first


def test_gymnasium_scales_each_cell_of_an_image_apart() -> None:
    pytest.importorskip("minigrid")
    runner = begun(1, id="MiniGrid-SimpleCrossingS9N1-v0", observation="image", cell_pixels=8, max_turns=40)
    image = PillowImage.open(io.BytesIO(runner.opening.messages[-1].images[0].data))
    assert image.size == (72, 72)
    cells = [image.crop((x, y, x + 8, y + 8)).tobytes() for x in range(0, 72, 8) for y in range(0, 72, 8)]
    # walls, floor, agent and goal; walls and floor also in the agent's view, which is brighter
    assert len(set(cells)) <= 6


@pytest.mark.parametrize(
    ("env", "size"), [("FrozenLake-v1", (32, 32)), ("CliffWalking-v1", (96, 32)), ("Taxi-v4", (88, 56))]
)
def test_cell_pixels_set_the_size_of_images(env: str, size: tuple[int, int]) -> None:
    runner = begun(1, id=env, observation="image", cell_pixels=8)
    assert PillowImage.open(io.BytesIO(runner.opening.messages[-1].images[0].data)).size == size


def minigrid_with_objects(observation):
    """A worker's environment with a red key, a locked blue door and a green ball that the agent carries."""
    objects = pytest.importorskip("minigrid.core.world_object")
    worker = import_module("turnwise.envs.adapters.gymnasium_worker").GymnasiumWorkerEnv(
        id="MiniGrid-Empty-5x5-v0",
        options={},
        actions=[],
        success_at=None,
        invalid_reward=None,
        action_budget=20,
        observation=observation,
        image_side=64,
        cell_pixels=None,
    )
    worker.reset(0)
    env = worker.env.unwrapped
    env.grid.set(2, 1, objects.Key("red"))
    env.grid.set(1, 3, objects.Door("blue", is_locked=True))
    env.carrying = objects.Ball("green")
    return worker


def test_minigrid_text_shows_the_whole_grid_and_coloured_objects() -> None:
    worker = minigrid_with_objects("text")
    assert worker.step("right")["text"].splitlines() == [
        "# # # # #",
        "# v K . #",
        "# . . . #",
        "# D . G #",
        "# # # # #",
        "red key at row 2 col 3",
        "locked blue door at row 4 col 2",
        "mission: get to the green goal square",
        "you carry: green ball",
    ]
    assert "# wall" in worker.about()["rules"] and "triangle" not in worker.about()["rules"]


def test_minigrid_image_comes_with_the_mission_and_the_carried_object() -> None:
    worker = minigrid_with_objects("image")
    assert worker.step("right")["text"] == "mission: get to the green goal square\nyou carry: green ball"
    assert "# wall" not in worker.about()["rules"] and "triangle" in worker.about()["rules"]


def test_minigrid_text_is_played_to_success() -> None:
    pytest.importorskip("minigrid")
    runner = begun(1, id="MiniGrid-Empty-5x5-v0")
    results = acted(runner, *runner.env.solve())
    assert results[-1].success
    assert results[1].messages[0].content.splitlines()[1] == "# . . > #"


def test_gymnasium_solves_minigrid_by_turns_and_moves() -> None:
    pytest.importorskip("minigrid")
    runner = begun(2, id="MiniGrid-SimpleCrossingS9N1-v0", observation="image", max_turns=40)
    way = runner.env.solve()
    results = acted(runner, *way)
    assert results[-1].success and results[-1].reward > 0.5 and not any(each.over for each in results[:-1])
    assert "red triangle" in runner.opening.messages[0].content and "forward" in runner.opening.messages[0].content


def test_gymnasium_without_frames_rejects_images_in_one_line() -> None:
    with pytest.raises(UserError, match="draws no rgb_array"):
        begun(1, id="gymnasium.envs.registration:GymV26Environment-v0", observation="image")


def test_gymnasium_view_params_leave_tasks_and_starts_unchanged() -> None:
    spec = spec_of(GymnasiumEnv)
    assert not {"observation", "image_side", "cell_pixels"} & set(spec.check_params({}))
    assert spec.cls.stream_params(
        spec.check_params({"observation": "image", "cell_pixels": 8})
    ) == spec.cls.stream_params(spec.check_params({}))
