"""SVG reconstruction: exact scores, hostile SVG that never reaches the renderer, and the jail if it did."""

import asyncio
import base64
import io
import random
import re
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy
import pytest

pytest.importorskip("resvg_py")

from PIL import Image as PillowImage

from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.envs.spec import EnvRunner
from turnwise.envs.svg_reconstruction import env, renderer
from turnwise.envs.svg_reconstruction.env import SvgReconstruction
from turnwise.envs.svg_reconstruction.renderer import SvgRenderer, shared_renderers
from turnwise.envs.svg_reconstruction.scene import (
    MAX_CHARS,
    MAX_DEPTH,
    MAX_ELEMENTS,
    Shape,
    format_svg,
    random_scene,
    read_svg,
)
from turnwise.envs.svg_reconstruction.scoring import pixel_score, structure_score
from turnwise.sandbox import host
from turnwise.sandbox.types import SandboxFailure, SandboxUnavailable

SQUARE = '<rect x="1" y="2" width="30" height="20" fill="red"/>'
SHORT = {"timeout_s": 2.0}
"""Limits of a second sandbox, for SVG that takes as long as it may."""
T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]


@pytest.fixture(scope="module")
def run(optional_part: Callable[..., NoReturn]) -> Iterator[Run[Any]]:
    """Run a coroutine in the one event loop of these tests, which has one sandbox."""
    with asyncio.Runner() as runner:
        try:
            runner.run(answers().render(svg(SQUARE), 16))
        except SandboxUnavailable as error:
            optional_part(str(error))
        yield runner.run


def answers(timeout_s: float = 5.0) -> SvgRenderer:
    return shared_renderers(timeout_s, 256).answers


def svg(inside: str, attributes: str = 'viewBox="0 0 64 64"') -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" {attributes}>{inside}</svg>'


def begin(seed: int = 1, **params: object) -> EnvRunner:
    spec = load_spec("svg_reconstruction")
    return spec.make(Task(env="svg_reconstruction", seed=seed, params=spec.check_params(params)))


async def start(seed: int = 1, **params: object) -> tuple[EnvRunner, str]:
    """Start an episode; return it with the SVG of its picture."""
    runner = begin(seed, **params)
    await runner.start()
    assert isinstance(runner.env, SvgReconstruction)
    return runner, runner.env.solve()[0]


async def answer(runner: EnvRunner, *actions: str) -> list[StepResult]:
    return [await runner.step(assistant(f"<answer>{action}</answer>")) for action in actions]


async def play(*actions: str, **params: object) -> list[StepResult]:
    return await answer((await start(**params))[0], *actions)


async def render(shapes: list[Shape], side: int = 48) -> numpy.ndarray:
    return await answers().render(format_svg(shapes), side)


def draw_without_sandbox(text: str, side: int) -> PillowImage.Image:
    """Render with the rights of this process, to prove that an attack is one."""
    code = f"""
import resvg_py, sys
options = {{"width": {side}, "height": {side}, "background": "#ffffff", "skip_system_fonts": True}}
sys.stdout.buffer.write(resvg_py.svg_to_bytes(svg_string=sys.stdin.read(), **options))
"""
    done = subprocess.run([sys.executable, "-c", code], input=text.encode(), capture_output=True, check=True)
    return PillowImage.open(io.BytesIO(done.stdout)).convert("RGB")


def test_svg_solution_scores_one_and_succeeds(run: Run[Any]) -> None:
    runner = begin()
    opening = run(runner.start())
    assert len(opening.messages[-1].images) == 1
    assert isinstance(runner.env, SvgReconstruction)
    (result,) = run(answer(runner, *runner.env.solve()))
    assert result.success and result.reward == pytest.approx(1.0)
    assert result.messages[0].images == opening.messages[-1].images


def test_svg_turns_pay_the_improvement_over_the_best(run: Run[Any]) -> None:
    runner, target = run(start())
    grey = re.sub(r'fill="\w+"', 'fill="gray"', target)
    first, second, third = run(answer(runner, grey, svg(""), target))
    assert 0 < first.reward < 1 and second.reward == 0.0
    assert third.success and first.reward + third.reward == pytest.approx(1.0)
    assert "structure" in first.messages[0].content and not second.over


def test_svg_structure_weight_weighs_the_structure(run: Run[Any]) -> None:
    runner, target = run(start(structure_weight=1.0))
    hidden = target.replace("</svg>", '<rect x="0" y="0" width="64" height="64" fill="white"/></svg>')
    count = len(read_svg(target))
    (result,) = run(answer(runner, hidden))
    assert result.reward == pytest.approx(2 * count / (2 * count + 1))


def test_pixel_score_is_at_least_zero(run: Run[Any]) -> None:
    black = Shape(tag="rect", attributes={"x": "0", "y": "0", "width": "64", "height": "64", "fill": "black"})
    assert pixel_score(run(render([black])), run(render(read_svg(svg(SQUARE))))) == 0.0


def test_svg_tasks_are_drawn_from_their_seeds_and_not_from_limits(run: Run[Any]) -> None:
    targets = [run(start(seed, **limits))[1] for seed, limits in ((1, {}), (1, SHORT), (2, {}))]
    assert targets[0] == targets[1] != targets[2]


def test_rendered_pixels_are_those_of_resvg(run: Run[Any]) -> None:
    scene = [shape for seed in range(4) for shape in random_scene(random.Random(seed), min_shapes=6, max_shapes=6)]
    assert {shape.tag for shape in scene} == {"rect", "circle", "ellipse", "polygon"}
    assert (run(render(scene)) == numpy.asarray(draw_without_sandbox(format_svg(scene), 48))).all()


@pytest.mark.parametrize("seed", range(20))
def test_scene_survives_its_own_svg(seed: int, run: Run[Any]) -> None:
    scene = random_scene(random.Random(seed), min_shapes=1, max_shapes=6)
    assert read_svg(format_svg(scene)) == scene
    drawn = run(render(scene))
    assert structure_score(scene, scene) == pytest.approx(1.0) and pixel_score(drawn, drawn) == 1.0
    assert pixel_score(run(render([])), drawn) == 0.0 == structure_score([], scene)


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
    "long value": svg(f'<path d="{"M0 0" * 300}"/>'),
    "long": svg("<g/>" * 600),
    "other root": "<html/>",
    "null": svg("\0"),
    "surrogate": svg("\ud800"),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_svg_is_an_invalid_action_and_the_episode_goes_on(text: str, run: Run[Any]) -> None:
    invalid, valid = run(play(text, svg(SQUARE)))
    assert not valid.invalid and len(valid.messages[0].images) == 1
    if text != HOSTILE["nan"]:  # draws nothing
        assert invalid.invalid and invalid.reward == 0.0
        assert len(invalid.messages[0].content) < 400


def test_read_svg_limits_depth_and_number_of_elements() -> None:
    deepest = "<g>" * (MAX_DEPTH - 1) + SQUARE + "</g>" * (MAX_DEPTH - 1)
    assert len(read_svg(svg(deepest))) == 1
    with pytest.raises(ValueError, match="deep"):
        read_svg(svg(f"<g>{deepest}</g>"))
    assert len(read_svg(svg("<rect/>" * MAX_ELEMENTS))) == MAX_ELEMENTS
    with pytest.raises(ValueError, match="elements"):
        read_svg(svg("<rect/>" * (MAX_ELEMENTS + 2)))

    with pytest.raises(ValueError, match=f"{MAX_CHARS} characters"):
        read_svg(svg(" " * MAX_CHARS))


# The rest lets SVG pass that `read_svg` refuses: the sandbox must hold without it.

ENDLESS = svg(
    '<filter id="f"><feTurbulence baseFrequency="0.05" numOctaves="100000000"/></filter>'
    '<rect width="64" height="64" filter="url(#f)"/>'
)
LARGE = svg(
    '<pattern id="p" width="30000" height="30000" patternUnits="userSpaceOnUse"><rect width="9" height="9"/></pattern>'
    '<rect width="64" height="64" fill="url(#p)"/>'
)
DEEP = svg('<g opacity="0.5">' * 900 + SQUARE + "</g>" * 900)
ENTITIES = '<!DOCTYPE svg [<!ENTITY a "&b;&b;"><!ENTITY b "&a;&a;">]>' + svg("<text>&a;</text>")
FATAL = {
    "endless": (ENDLESS, SHORT, "the SVG takes longer than 2 s to render"),
    "large": (LARGE, {}, "the SVG crashes the renderer, or takes more than 256 MiB"),
    "stack overflow": (DEEP, {}, "the SVG crashes the renderer, or takes more than 256 MiB"),
    "entity loop": (ENTITIES, {}, "the SVG cannot be rendered (ValueError: "),
    "too much text": (svg(" " * 200_000), {}, "the SVG cannot be rendered (the code has 2"),
}


@pytest.mark.parametrize(("text", "params", "note"), FATAL.values(), ids=FATAL.keys())
def test_fatal_svg_is_an_invalid_action_and_the_next_picture_is_drawn(
    text: str, params: dict[str, float], note: str, run: Run[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, target = run(start(**params))
    with monkeypatch.context() as patch:
        patch.setattr(env, "format_svg", lambda shapes: text)
        (invalid,) = run(answer(runner, svg(SQUARE)))
    assert invalid.invalid and invalid.reward == 0.0 and not invalid.over
    assert invalid.messages[0].content.startswith(f"Invalid action: {note}")
    (after,) = run(answer(runner, target))
    assert after.success and after.reward == pytest.approx(1.0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may read, so that only the sandbox keeps the renderer out."""
    with tempfile.TemporaryDirectory(prefix="turnwise-svg-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("name", ["secret.png", "secret.svg"])
@pytest.mark.parametrize("prefix", ["", "../" * 20])
def test_renderer_reads_no_file(name: str, prefix: str, open_folder: Path, run: Run[Any]) -> None:
    path = open_folder / name
    if name.endswith("png"):
        PillowImage.new("RGB", (8, 8), "red").save(path)
    else:
        path.write_text(svg('<rect width="64" height="64" fill="red"/>'))
    path.chmod(0o644)
    attack = svg(f'<image href="{prefix}{path}" width="64" height="64"/>')
    assert draw_without_sandbox(attack, 16).getpixel((8, 8)) == (255, 0, 0), "resvg reads it by itself"
    assert (run(answers().render(attack, 16)) == 255).all()


def test_renderer_reaches_no_network(run: Run[Any]) -> None:
    """resvg opens no connection, but a renderer under control of the agent would try."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        url = f"http://127.0.0.1:{port}/a.png"
        run(answers().render(svg(f'<image href="{url}" width="9" height="9"/>'), 16))
        attack = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)"
        result = run(run_in_session(attack))
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert result.status == "error" and "Error" in result.error.splitlines()[-1]


async def run_in_session(code: str) -> Any:
    """Run code in a session like those that render."""
    session = await answers()._sandbox.session()
    try:
        return await session.run(code)
    finally:
        session.close()


def test_renderer_starts_no_process(run: Run[Any]) -> None:
    result = run(run_in_session("import os\nos.fork()"))
    assert result.status == "error" and "Error" in result.error.splitlines()[-1]


def slots(of: SvgRenderer) -> list[int]:
    """Return the process ids of the sessions that wait for pictures."""
    return [slot.session.pid for slot in of._free.get()._queue if slot.session is not None]  # type: ignore[attr-defined]


def test_renderer_keeps_its_session_for_a_number_of_pictures(run: Run[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def pids(count: int) -> list[list[int]]:
        drawing = SvgRenderer(answers()._sandbox)
        found = []
        for _ in range(count):
            await drawing.render(svg(SQUARE), 16)
            found.append(slots(drawing))
        return found

    first, second, third = run(pids(3))
    assert len(first) == 1 and first == second == third
    monkeypatch.setattr(renderer, "MAX_PICTURES", 2)
    first, second, third = run(pids(3))
    assert second == [] and len(third) == 1 and third != first


def test_renderer_of_targets_reads_no_answer(run: Run[Any]) -> None:
    async def both() -> tuple[list[int], list[int]]:
        await play(svg(SQUARE))
        shared = shared_renderers(5.0, 256)
        return slots(shared.targets), slots(shared.answers)

    targets, others = run(both())
    assert targets and others and not set(targets) & set(others)


def test_cancelled_rendering_frees_its_slot(run: Run[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancel_and_render() -> None:
        monkeypatch.setattr(renderer, "NUM_SESSIONS", 1)
        drawing = SvgRenderer(answers(timeout_s=60.0)._sandbox)
        endless = asyncio.create_task(drawing.render(ENDLESS, 16))
        await asyncio.sleep(0.05)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        async with asyncio.timeout(60):
            await drawing.render(svg(SQUARE), 16)

    run(cancel_and_render())


PIXELS = bytes(range(256)) * 3
FORGED = {
    "nothing": "",
    "not base64": "'%%%'",
    "not compressed": repr(base64.b64encode(PIXELS).decode()),
    "too few": repr(base64.b64encode(zlib.compress(PIXELS[:-1])).decode()),
    "too many": repr(base64.b64encode(zlib.compress(PIXELS + b"0")).decode()),
    "bomb": repr(base64.b64encode(zlib.compress(bytes(10**8))).decode()),
    "cut": repr(base64.b64encode(zlib.compress(PIXELS)[:-40]).decode()),
}


@pytest.mark.parametrize("value", FORGED.values(), ids=FORGED.keys())
def test_forged_pixels_are_rejected(value: str) -> None:
    with pytest.raises(ValueError, match="cannot be rendered"):
        renderer._read_pixels(value, 16)


def test_read_pixels_returns_rows_of_colors() -> None:
    drawn = renderer._read_pixels(repr(base64.b64encode(zlib.compress(PIXELS)).decode()), 16)
    assert drawn.shape == (16, 16, 3) and drawn[0, 1].tolist() == [3, 4, 5]


def test_broken_sandbox_is_not_the_agents_mistake(run: Run[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(drawing: SvgRenderer, text: str, side: int) -> NoReturn:
        raise SandboxFailure("broken")

    runner, target = run(start())
    monkeypatch.setattr(SvgRenderer, "render", fail)
    with pytest.raises(SandboxFailure):
        run(answer(runner, target))


def test_svg_reconstruction_without_a_sandbox_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "unsupported_reason", lambda: "the sandbox needs Linux; this is Darwin")
    with pytest.raises(SandboxUnavailable, match="needs Linux"):
        asyncio.run(start(timeout_s=3.0))
