"""SVG reconstruction: exact scores, and hostile SVG that never reaches the renderer or harms the run."""

import asyncio
import random
import re

import pytest

pytest.importorskip("resvg_py")

from turnwise.core.errors import EnvironmentFailure
from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.envs.spec import EnvRunner
from turnwise.envs.svg_reconstruction.env import SvgReconstruction
from turnwise.envs.svg_reconstruction.scene import MAX_DEPTH, MAX_ELEMENTS, Shape, format_svg, random_scene, read_svg
from turnwise.envs.svg_reconstruction.worker import pixel_score, render, structure_score

SQUARE = '<rect x="1" y="2" width="30" height="20" fill="red"/>'


def svg(inside: str, attributes: str = "") -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" {attributes}>{inside}</svg>'


def begin(seed: int = 1, **params: object) -> EnvRunner:
    spec = load_spec("svg_reconstruction")
    return spec.make(Task(env="svg_reconstruction", seed=seed, params=spec.check_params(params)))


def play(runner: EnvRunner, *actions: str) -> list[StepResult]:
    async def steps() -> list[StepResult]:
        await runner.start()
        return [await runner.step(assistant(f"<answer>{action}</answer>")) for action in actions]

    return asyncio.run(steps())


def test_svg_solution_scores_one_and_succeeds() -> None:
    runner = begin()
    opening = asyncio.run(runner.start())
    assert len(opening.messages[-1].images) == 1
    assert isinstance(runner.env, SvgReconstruction)
    (target,) = runner.env.solve() or []
    result = asyncio.run(runner.step(assistant(f"<answer>{target}</answer>")))
    assert result.success and result.reward == pytest.approx(1.0)
    assert result.messages[0].images == opening.messages[-1].images


def test_svg_turns_pay_the_improvement_over_the_best() -> None:
    runner = begin()
    asyncio.run(runner.start())
    assert isinstance(runner.env, SvgReconstruction)
    (target,) = runner.env.solve() or []
    grey = re.sub(r'fill="\w+"', 'fill="gray"', target)
    first, second, third = play(begin(), grey, svg(""), target)
    assert 0 < first.reward < 1 and second.reward == 0.0
    assert third.success and first.reward + third.reward == pytest.approx(1.0)
    assert "structure" in first.messages[0].content and not second.over


def test_svg_structure_weight_weighs_the_structure() -> None:
    runner = begin(structure_weight=1.0)
    asyncio.run(runner.start())
    assert isinstance(runner.env, SvgReconstruction)
    (target,) = runner.env.solve() or []
    hidden = target.replace("</svg>", '<rect x="0" y="0" width="64" height="64" fill="white"/></svg>')
    count = len(read_svg(target))
    (result,) = play(begin(structure_weight=1.0), hidden)
    assert result.reward == pytest.approx(2 * count / (2 * count + 1))


def test_pixel_score_is_at_least_zero() -> None:
    black = Shape(tag="rect", attributes={"x": "0", "y": "0", "width": "64", "height": "64", "fill": "black"})
    assert pixel_score(render([black], 48), render(read_svg(svg(SQUARE)), 48)) == 0.0


def test_svg_tasks_are_drawn_from_their_seeds() -> None:
    images = [asyncio.run(begin(seed).start()).messages[-1].images for seed in (1, 1, 2)]
    assert images[0] == images[1] != images[2]


@pytest.mark.parametrize("seed", range(20))
def test_scene_survives_its_own_svg(seed: int) -> None:
    scene = random_scene(random.Random(seed), min_shapes=1, max_shapes=6)
    assert read_svg(format_svg(scene)) == scene
    drawn = render(scene, 48)
    assert structure_score(scene, scene) == pytest.approx(1.0) and pixel_score(drawn, drawn) == 1.0
    assert pixel_score(render([], 48), drawn) == 0.0 == structure_score([], scene)


def test_structure_score_pairs_shapes_and_counts_extra_ones() -> None:
    one = Shape(tag="rect", attributes={"x": "0", "y": "0", "width": "20", "height": "20", "fill": "red"})
    circle = Shape(tag="circle", attributes={"cx": "10", "cy": "10", "r": "5", "fill": "red"})
    ellipse = Shape(tag="ellipse", attributes={"cx": "10", "cy": "10", "rx": "5", "ry": "5", "fill": "#ff0000"})
    blue = Shape(tag="rect", attributes={**one.attributes, "fill": "blue"})
    moved = Shape(tag="rect", attributes={**one.attributes, "x": "8"})
    assert structure_score([circle, one], [one, ellipse]) == pytest.approx(1.0)
    assert structure_score([one, one], [one]) == pytest.approx(2 / 3)
    assert structure_score([circle], [one]) == 0.0
    assert structure_score([blue], [one]) == pytest.approx((1 + 1 / 3) / 2)
    assert structure_score([moved], [one]) == pytest.approx(((0.5 + 1 + 0.5 + 1) / 4 + 1) / 2)


def test_read_svg_applies_groups_and_ignores_the_size() -> None:
    read = read_svg(svg(f'<g fill="blue"><g><circle r="3"/></g></g>{SQUARE}', 'width="9e99" viewBox="0 0 1 1"'))
    assert [shape.tag for shape in read] == ["circle", "rect"]
    assert [shape.fill for shape in read] == ["blue", "red"]


BOMB = '<!DOCTYPE svg [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>' + svg("<g>&b;</g>")
HOSTILE = {
    "not xml": "draw a cat",
    "entity bomb": BOMB,
    "external entity": '<!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + svg("&x;"),
    "processing instruction": '<?xml-stylesheet href="file:///etc/passwd"?>' + svg(""),
    "image of a file": svg('<image href="/etc/passwd" width="9" height="9"/>'),
    "use": svg('<use href="#a"/>'),
    "style element": svg("<style>@import url(file:///etc/passwd)</style>"),
    "style attribute": svg('<rect style="fill:url(#a)"/>'),
    "url in paint": svg('<rect width="3" height="3" fill="url(file:///etc/passwd#a)"/>'),
    "filter": svg('<filter id="f"><feGaussianBlur stdDeviation="1e9"/></filter>'),
    "script": svg("<script>1</script>"),
    "text": svg("<text>x</text>"),
    "huge number": svg('<rect width="1e308" height="9"/>'),
    "huge stroke": svg('<rect width="9" height="9" stroke="red" stroke-width="1e30"/>'),
    "nan": svg('<rect width="nan" height="inf"/>'),
    "dashes": svg('<path d="M0 0L9 9" stroke-dasharray="0.0001"/>'),
    "transform": svg('<rect width="9" height="9" transform="scale(1e30)"/>'),
    "deep": svg("<g>" * 200 + "</g>" * 200),
    "many": svg("<g/>" * 400),
    "long": svg(f'<path d="{"M0 0" * 1000}"/>'),
    "other root": "<html/>",
    "null": svg("\0"),
    "surrogate": svg("\ud800"),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_svg_is_an_invalid_action_and_the_episode_goes_on(text: str) -> None:
    invalid, valid = play(begin(), text, svg(SQUARE))
    assert not valid.invalid and len(valid.messages[0].images) == 1
    if text != HOSTILE["nan"]:  # draws nothing
        assert invalid.invalid and invalid.reward == 0.0
        assert len(invalid.messages[0].content) < 400


def test_read_svg_limits_depth_and_number_of_elements() -> None:
    deepest = "<g>" * (MAX_DEPTH - 1) + SQUARE + "</g>" * (MAX_DEPTH - 1)
    assert len(read_svg(svg(deepest))) == 1
    with pytest.raises(ValueError, match="deep"):
        read_svg(svg(f"<g>{deepest}</g>"))
    assert len(read_svg(svg(SQUARE * MAX_ELEMENTS))) == MAX_ELEMENTS
    with pytest.raises(ValueError, match="elements"):
        read_svg(svg(SQUARE * (MAX_ELEMENTS + 2)))


def test_svg_that_ends_the_renderer_is_an_invalid_action(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = begin()
    asyncio.run(runner.start())
    assert isinstance(runner.env, SvgReconstruction)
    with monkeypatch.context() as patch:
        patch.setattr(runner.env.remote, "call", _raise)
        result = asyncio.run(runner.step(assistant(f"<answer>{svg(SQUARE)}</answer>")))
    assert result.invalid and "cannot be rendered" in result.messages[0].content and not result.over
    runner.env.remote._slot.process.end()
    after = asyncio.run(runner.step(assistant(f"<answer>{svg(SQUARE)}</answer>")))
    assert not after.invalid, "the process starts again with the same picture"


def _raise(method: str, **arguments: object) -> None:
    raise EnvironmentFailure("no reply")
