"""web_shop as screenshots: all that the text says is readable, and tasks and rewards are those of the text."""

import asyncio
import io
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("PIL")

from PIL import Image as PillowImage
from PIL import ImageDraw

from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.envs.web_shop.catalogue import Product, make_catalogue
from turnwise.envs.web_shop.env import WebShop
from turnwise.envs.web_shop.pages import Page, ProductPage, ResultsPage, SearchPage, page_blocks
from turnwise.pictures import web_page
from turnwise.pictures.fonts import load_built_in_font
from turnwise.pictures.glyphs import paste_text, text_width
from turnwise.pictures.shapes import Label, Polylines, Rect
from turnwise.pictures.web_page import PAGE_WIDTH, SELECTED_FILL, draw_page, lay_out_page

NAME = "web_shop"
HOSTILE = (
    "W" * 400,
    "a b " * 500,
    '<svg onload="alert(1)"> & ]]> %s {0}',
    "\u202egnp.exe\x00\x1b[31m\ud800\n\n\t\u2028",
    "漢字" * 60,
    "e" + "\u0301" * 3000,
    "🧑\u200d🚒" * 40,
    "",
)


def make(seed: int, **params: Any) -> Any:
    spec = load_spec(NAME)
    return spec.make(Task(env=NAME, seed=seed, params=spec.check_params(params)))


def play_randomly(seed: int, **params: Any) -> list[Any]:
    """Return what does not depend on the form of the observation, turn by turn."""

    async def play() -> list[Any]:
        runner, rng = make(seed, **params), random.Random(seed)
        await runner.start()
        found: list[Any] = [runner.env.state_key(), runner.env.rng.random()]
        for _ in range(12):
            action = runner.env.random_action(rng)
            result = await runner.step(assistant(f"<answer>{action}</answer>"))
            found.append((action, result.reward, result.success, result.terminated, runner.env.state_key()))
            if result.over:
                break
        return found

    return asyncio.run(play())


def pages(count: int) -> Iterator[Page]:
    """Yield the pages of random play and of the scripted player."""
    for seed in range(count):
        env, rng = make(seed).env, random.Random(seed)
        env.reset(random.Random(seed))
        for turn in range(12):
            yield env.page
            if env.step(env.solve()[0] if turn % 3 == 0 else env.random_action(rng)).over:
                break


def boxes(page: Page) -> dict[str, Rect]:
    """Return the drawn buttons by their names: boxes with a text inside."""
    shapes = lay_out_page("Web Shop", page_blocks(page)).shapes
    frames = [shape for shape in shapes if isinstance(shape, Rect) and shape.stroke == web_page.BUTTON_EDGE]
    texts = [shape for shape in shapes if isinstance(shape, Label)]
    return {" ".join(text.text for text in texts if inside(text, frame)): frame for frame in frames}


def inside(label: Label, frame: Rect) -> bool:
    left, top, right, bottom = extent(label)
    return (
        left >= frame.x and right <= frame.x + frame.width and frame.y <= (top + bottom) / 2 <= frame.y + frame.height
    )


def extent(label: Label) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a text."""
    width = label.size * text_width(label.text)
    left = label.x - width / 2 if label.anchor == "middle" else label.x
    return left, label.y - label.size / 2, left + width, label.y + label.size / 2


@pytest.mark.parametrize("params", [{"observation": "image"}, {"observation": "both", "image_width": 336}], ids=str)
def test_images_leave_tasks_rewards_and_random_streams_unchanged(params: dict[str, Any]) -> None:
    for seed in range(6):
        assert play_randomly(seed, **params) == play_randomly(seed)


def test_screenshot_has_all_words_of_the_page() -> None:
    kinds = set()
    for page in pages(12):
        shown = Counter(
            word
            for shape in lay_out_page("Web Shop", page_blocks(page)).shapes
            if isinstance(shape, Label)
            for word in shape.text.split()
        )
        written = Counter(re.sub(r"[\[\]:]| \(chosen\)", " ", page.text).split())
        assert not written - Counter(word.strip(":") for word in shown.elements())
        kinds.add(type(page))
    assert kinds == {SearchPage, ResultsPage, ProductPage}


def test_screenshot_has_a_button_for_everything_that_can_be_clicked() -> None:
    for page in pages(12):
        assert boxes(page).keys() == set(page.buttons)


def test_screenshot_marks_selected_options_alone() -> None:
    marked = 0
    for page in pages(12):
        selected = set(page.selected.values()) if isinstance(page, ProductPage) else set()
        buttons = boxes(page)
        assert {name for name, box in buttons.items() if box.fill == SELECTED_FILL} == selected
        checks = [shape for shape in lay_out_page("", page_blocks(page)).shapes if isinstance(shape, Polylines)]
        assert isinstance(page, SearchPage) or len(checks) == len(selected)
        marked += len(selected)
    assert marked


def hostile_product(product: Product, texts: list[str]) -> Product:
    title, code, name, value, attribute = texts
    return replace(
        product, title=title, code=code, options=((name, (value, "small")), ("size", ("6",))), attributes=(attribute,)
    )


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(HOSTILE) | st.text(max_size=80), min_size=5, max_size=5))
def test_hostile_product_texts_stay_inside_the_page_and_apart(texts: list[str]) -> None:
    products = tuple(hostile_product(product, texts) for product in make_catalogue(0, 50)[:3])
    results = ResultsPage(products=products, page_number=1, per_page=3)
    product_page = ProductPage(product=products[0], results=results, selected={texts[2]: texts[3]}, show_features=True)
    for page in (results, product_page):
        drawing = lay_out_page("Web Shop", page_blocks(page))
        extents = [extent(shape) for shape in drawing.shapes if isinstance(shape, Label)]
        for left, top, right, bottom in extents:
            assert left >= 0 and top >= 0 and right <= PAGE_WIDTH and bottom <= drawing.height
        for a, b in combinations(extents, 2):
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1] or a[0] == a[2] or b[0] == b[2]
        assert drawing.height < 1000
        image = PillowImage.open(io.BytesIO(draw_page("Web Shop", page_blocks(page), PAGE_WIDTH).data))
        assert image.width == PAGE_WIDTH


def test_largest_page_of_hostile_titles_is_a_valid_image() -> None:
    products = tuple(replace(product, title="W" * 999) for product in make_catalogue(0, 50))
    page = ResultsPage(products=products, page_number=1, per_page=50)
    image = PillowImage.open(io.BytesIO(draw_page("Web Shop", page_blocks(page), 896).data))
    assert image.height > 4000 and image.width > 448


def image_of(env: WebShop) -> PillowImage.Image:
    return PillowImage.open(io.BytesIO(env.draw_image().data))


def test_image_width_scales_the_page_in_steps_of_a_token() -> None:
    for width in (336, 448, 500, 896):
        env = make(0, observation="image", image_width=width).env
        env.reset(random.Random(0))
        start = image_of(env)
        env.step("search[shirt]")
        results = image_of(env)
        assert start.width == results.width == width
        assert start.height % 28 == results.height % 28 == 0 and start.height < results.height
        if width == 448:
            assert results.size == (448, 448), "ten results are 16 x 16 tokens of Qwen2.5-VL"


def test_pages_are_drawn_when_read_and_cached_by_what_they_show(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list[Any]()
    own = web_page.page_to_image
    monkeypatch.setattr(web_page, "page_to_image", lambda *page: drawn.append(page) or own(*page))
    web_page._draw_page_png.cache_clear()
    env = make(0, observation="image", products=60).env
    env.reset(random.Random(0))
    env.step("search[shirt]")
    code = env.page.shown[0].code
    by_type = env.step(f"click[{code}]").text[1]
    assert not drawn
    env.step("click[Back to Search]")
    env.step(f"search[{env.page.text} {make_catalogue(0, 60)[int(code[1:])].title}]")
    assert env.page.shown[0].code == code
    by_title = env.step(f"click[{code}]").text[1]
    assert by_type.data == by_title.data and len(drawn) == 1
    env.step("click[Features]")
    assert env.draw_image().data != by_title.data and len(drawn) == 2


@pytest.mark.parametrize("text", ["Cobalt simple sandals", "$118.98", "B0427 < Prev"])
def test_pasted_text_has_the_ink_of_pillow_s_text(text: str) -> None:
    """Compared with the same text drawn at four times its size and reduced; only kerning differs."""
    size, width = 13, 200
    pasted = PillowImage.new("RGB", (width, 24), "white")
    paste_text(pasted, 8.25, 17.0, text, size=size, fill=(0, 0, 0))
    large = PillowImage.new("L", (4 * width, 4 * 24), 255)
    ImageDraw.Draw(large).text((33, 68), text, font=load_built_in_font(4 * size), fill=0, anchor="ls")
    ours, theirs = (image.convert("L").point(lambda value: 255 - value) for image in (pasted, large.reduce(4)))
    for edge, other in zip(ours.getbbox(), theirs.getbbox(), strict=True):
        assert abs(edge - other) <= 2
    assert 8 + size * text_width(text) == pytest.approx(ours.getbbox()[2], abs=2)
    ink, reference = (sum(value * count for value, count in enumerate(each.histogram())) for each in (ours, theirs))
    assert 1.0 <= ink / reference < 1.5, "strokes are darkened, not doubled"


def test_pasted_text_moves_by_a_quarter_of_a_pixel() -> None:
    images = []
    for x in (5.0, 5.25, 5.5, 6.0):
        image = PillowImage.new("L", (40, 24), 0)
        paste_text(image, x, 17.0, "lil", size=13, fill=255)
        images.append(image)
    assert len({image.tobytes() for image in images}) == 4
    moved = images[0].transform((40, 24), PillowImage.Transform.AFFINE, (1, 0, -1, 0, 1, 0))
    assert moved.tobytes() == images[3].tobytes(), "whole pixels move the same letters"
