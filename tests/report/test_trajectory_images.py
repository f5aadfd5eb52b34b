import io
from pathlib import Path
from typing import Any

import pytest

pil = pytest.importorskip("PIL", reason="pictures as PNG and GIF need Pillow: pip install 'turnwise[pictures]'")
from PIL import Image, ImageChops  # noqa: E402

from turnwise.core.errors import UserError  # noqa: E402
from turnwise.pictures import fonts  # noqa: E402
from turnwise.pictures.gridworlds import CELL  # noqa: E402
from turnwise.pictures.picture import draw_picture  # noqa: E402
from turnwise.pictures.raster import drawing_to_image  # noqa: E402
from turnwise.report.trajectory_images import (  # noqa: E402
    MAX_STATES,
    TrajectoryImages,
    collect_pictures,
    encode_animation,
    encode_strip,
)

LAKE = {"rows": [["ice", "hole"], ["goal", "player"]], "caption": "", "info": {}}
AFTER = {"rows": [["ice", "hole"], ["player_on_goal", "ice"]], "caption": "", "info": {}}


def trajectory(turns: int = 2, **changes: Any) -> dict[str, Any]:
    return {"group": 0, "member": 0, "start": LAKE, "turns": [{"picture": AFTER}] * turns, **changes}


def load_image(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def at(image: Image.Image, across: float, down: float) -> Any:
    """Return the colour at a position, given in cells."""
    margin = 2  # of the drawing
    return image.getpixel((round(2 * (margin + CELL * across)), round(2 * (margin + CELL * down))))


def test_drawing_to_image_puts_pixels_where_the_shapes_are() -> None:
    """Check the colours of ice, a hole and a box in their cells."""
    image = drawing_to_image(draw_picture({"rows": [["ice", "hole"], ["box", "ice"]], "caption": "", "info": {}}))
    assert image.size == (2 * 84, 2 * 84)
    assert at(image, 0.5, 0.5) == (0xDC, 0xED, 0xF8)
    assert sum(at(image, 1.5, 0.7)) < 300
    red, green, blue = at(image, 0.5, 1.3)
    assert red > green > blue


def test_encode_strip_has_one_frame_per_state() -> None:
    one, two = (
        load_image(encode_strip([("start", LAKE)])),
        load_image(encode_strip([("start", LAKE), ("turn 1", AFTER)])),
    )
    assert two.size == (2 * one.width, one.height)
    left, right = two.crop((0, 0, one.width, one.height)), two.crop((one.width, 0, two.width, one.height))
    assert ImageChops.difference(left.convert("RGB"), one.convert("RGB")).getbbox() is None
    assert ImageChops.difference(left, right).getbbox() is not None


def test_encode_strip_wraps_after_eight_states() -> None:
    one = load_image(encode_strip([("x", LAKE)]))
    assert load_image(encode_strip([("x", LAKE)] * 9)).size == (8 * one.width, 2 * one.height)


@pytest.mark.parametrize("file_format", ["gif", "png"])
def test_encode_animation_loops_and_pauses_on_the_last_state(file_format: Any) -> None:
    film = load_image(encode_animation([("start", LAKE), ("turn 1", AFTER), ("turn 2", LAKE)], file_format))
    assert film.n_frames == 3
    assert film.info["loop"] == 0
    film.seek(0)
    first = film.info["duration"]
    film.seek(2)
    assert film.info["duration"] > first


def test_collect_pictures_has_the_start_and_every_drawn_turn() -> None:
    found = collect_pictures(trajectory(turns=2))
    assert [name for name, _ in found] == ["start", "turn 1", "turn 2"]
    assert found[0][1] is LAKE and found[2][1] is AFTER
    old = {"turns": [{"picture": None}, {"picture": AFTER}]}
    assert [name for name, _ in collect_pictures(old)] == ["turn 2"]


def test_collect_pictures_keeps_first_and_last_of_a_long_trajectory() -> None:
    names = [name for name, _ in collect_pictures(trajectory(turns=500))]
    assert len(names) == MAX_STATES
    assert (names[0], names[-1]) == ("start", "turn 500")


def test_split_by_font_finds_a_glyph_in_every_script(optional_part: Any) -> None:
    """No character is drawn as the box for missing ones, if the machine has the fonts."""
    if (missing := fonts.describe_missing_fonts()) is not None:
        optional_part(missing)
    for letter in "aß漢あ한┌│🦊":
        for piece, font, _ in fonts.split_by_font(letter, fonts.font_chain(bold=False, mono=False), 32):
            box = font.getmask(fonts.UNASSIGNED)
            assert (font.getmask(piece).size, bytes(font.getmask(piece))) != (box.size, bytes(box)), letter


def test_drawing_to_image_keeps_emoji_colours(optional_part: Any) -> None:
    if not fonts.installed_fonts().keys() & set(fonts.font_names()["emoji"][:3]):
        optional_part("no font with colour emoji was found: install fonts-noto-color-emoji")
    image = drawing_to_image(draw_picture({"rows": [["🦊"]], "caption": "", "info": {}}))
    assert any(red > 200 and blue < 90 for _, (red, _, blue) in image.getcolors(1 << 20))  # type: ignore[misc]


def test_split_by_font_keeps_the_text() -> None:
    chain = fonts.font_chain(bold=False, mono=False)
    pieces = [piece for piece, _, _ in fonts.split_by_font("abc 漢字 x", chain, 20)]
    assert "".join(pieces) == "abc 漢字 x"


def test_drawing_to_image_works_without_installed_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "installed_fonts", dict)
    assert "fonts-noto-cjk" in (fonts.describe_missing_fonts() or "")
    image = drawing_to_image(draw_picture({"rows": [["hello"]], "caption": "", "info": {}}))
    assert len(image.getcolors(1 << 20) or []) > 10


def test_trajectory_images_are_written_beside_the_trajectories(tmp_path: Path) -> None:
    warnings: list[str] = []
    files = TrajectoryImages(tmp_path, every=2, warn=warnings.append)
    rows = [trajectory(group=group, member=member) for group in (0, 1, 2) for member in (0, 1)]
    assert files.write(1, rows) == []
    written = files.write(4, rows)
    name = "step_000004_group_0_member_0"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.gif", f"{name}.png"]
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()}
    assert load_image((tmp_path / f"{name}.gif").read_bytes()).n_frames == 3


def test_trajectory_images_warn_once_and_stop_after_a_failure(tmp_path: Path) -> None:
    warnings: list[str] = []
    files = TrajectoryImages(tmp_path / "missing", every=1, warn=warnings.append)
    warnings.clear()
    for step in (1, 2, 3):
        assert files.write(step, [trajectory()]) == []
    assert len(warnings) == 1 and "no more pictures" in warnings[0]


def test_trajectory_images_name_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(UserError, match=r"pip install 'turnwise\[pictures\]'"):
        TrajectoryImages(tmp_path, every=1, warn=print)
    TrajectoryImages(tmp_path, every=0, warn=print)  # needs no Pillow
