"""`tw.Image` takes what users have, and rejects what no model could see in one line."""

import io
import pickle
import struct
import zlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image as PillowImage
from PIL import ImageOps

from turnwise.core.errors import UserError
from turnwise.core.messages import ImagePart, Message, TextPart, join_lines, system, user
from turnwise.pictures import image as image_encoding
from turnwise.pictures.image import MAX_IMAGE_BYTES, MAX_SIDE, ORIENTATION, UPRIGHT, Image


def pixels(image: ImagePart) -> np.ndarray:
    opened = PillowImage.open(io.BytesIO(image.data))
    assert (opened.format, opened.mode) == ("PNG", "RGB")
    return np.asarray(opened)


def encoded(image: PillowImage.Image, file_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def gradient(height: int = 6, width: int = 9) -> np.ndarray:
    return np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)


def test_image_of_array_pillow_and_png_have_the_same_pixels() -> None:
    array = gradient()
    png = encoded(PillowImage.fromarray(array))
    for source in (array, np.asfortranarray(array), PillowImage.fromarray(array), png, bytearray(png)):
        assert np.array_equal(pixels(Image(source)), array)


def test_image_keeps_the_bytes_of_an_rgb_png() -> None:
    png = encoded(PillowImage.fromarray(gradient()), compress_level=0)
    assert Image(png).data == png


def test_image_of_grey_and_transparent_sources_is_rgb() -> None:
    grey = np.full((4, 5), 7, np.uint8)
    assert (pixels(Image(grey)) == 7).all()
    assert (pixels(Image(grey[:, :, None])) == 7).all()
    clear = np.zeros((4, 5, 4), np.uint8)
    assert (pixels(Image(clear)) == 255).all()
    palette = PillowImage.new("P", (3, 3), 0)
    palette.info["transparency"] = 0
    assert (pixels(Image(encoded(palette, transparency=0))) == 255).all()


@pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B"])
def test_image_of_16_bits_keeps_the_high_byte(mode: str) -> None:
    values = np.array([[0, 255, 256, 32_768, 65_535]], dtype=">u2" if mode == "I;16B" else "<u2")
    image = PillowImage.frombytes(mode, (5, 1), values.tobytes())
    assert pixels(Image(image))[0].tolist() == [[each] * 3 for each in (0, 0, 1, 128, 255)]
    if mode == "I;16":
        assert Image(encoded(image)) == Image(image)


@pytest.mark.parametrize("orientation", [1, *UPRIGHT])
def test_image_of_a_rotated_photo_is_upright(orientation: int) -> None:
    exif = PillowImage.Exif()
    exif[ORIENTATION] = orientation
    photo = encoded(PillowImage.fromarray(gradient()), exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(PillowImage.open(io.BytesIO(photo))))
    assert np.array_equal(pixels(Image(photo)), upright)
    assert np.array_equal(pixels(Image(PillowImage.open(io.BytesIO(photo)))), upright)


def test_image_with_broken_exif_data_is_shown_as_it_is() -> None:
    assert np.array_equal(pixels(Image(encoded(PillowImage.fromarray(gradient()), exif=b"broken"))), gradient())


def test_image_of_an_animated_png_is_its_first_frame() -> None:
    frames = encoded(PillowImage.fromarray(gradient()), save_all=True, append_images=[PillowImage.new("RGB", (9, 6))])
    still = Image(frames)
    assert np.array_equal(pixels(still), gradient()) and not PillowImage.open(io.BytesIO(still.data)).is_animated


def test_image_of_an_image_is_the_same() -> None:
    assert Image(Image(gradient())) == Image(gradient())


def test_image_of_jpeg_webp_and_gif_becomes_png() -> None:
    for file_format in ("JPEG", "WEBP", "GIF"):
        assert pixels(Image(encoded(PillowImage.new("RGB", (8, 8), "red"), file_format))).shape == (8, 8, 3)


def closed() -> PillowImage.Image:
    image = PillowImage.new("RGB", (4, 4))
    image.close()
    return image


def bomb() -> bytes:
    """A PNG that states 60,000 x 60,000 pixels in its header."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    body = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (None, "NoneType"),
        ("a.png", "str"),
        ([[1, 2]], "list"),
        (np.zeros((4, 4, 3)), "float64"),
        (np.zeros((3, 4, 5), np.uint8), "(3, 4, 5)"),
        (np.zeros((0, 4, 3), np.uint8), "4 x 0"),
        (np.zeros((1, MAX_SIDE + 1), np.uint8), "pixels"),
        (b"", "0 bytes"),
        (b"not an image", "12 bytes that are not a PNG, JPEG, WebP or GIF"),
        (encoded(PillowImage.new("RGB", (64, 64)))[:-30], "not a PNG"),
        (PillowImage.open(io.BytesIO(encoded(PillowImage.new("L", (64, 64)))[:-30])), "whole"),
        (closed(), "Operation on closed image"),
        (PillowImage.new("I", (4, 4)), "mode I"),
        (PillowImage.new("F", (4, 4)), "mode F"),
        (bomb(), "pixels: make it smaller"),
        (b"\0" * (MAX_IMAGE_BYTES + 1), "more than"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a PNG"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_image_rejects_wrong_sources_in_one_line(source: Any, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        Image(source)
    message = str(caught.value)
    assert message.startswith("tw.Image got ") and problem in message and "\n" not in message and len(message) < 250
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_image_whose_png_file_is_too_large_to_store_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    size = len(Image(noise).data)
    monkeypatch.setattr(image_encoding, "MAX_IMAGE_BYTES", size)
    assert len(Image(noise).data) == size
    monkeypatch.setattr(image_encoding, "MAX_IMAGE_BYTES", size - 1)
    for source in (noise, PillowImage.fromarray(noise), PillowImage.fromarray(noise).convert("RGBA")):
        with pytest.raises(UserError, match=f"tw.Image got {size} bytes, more than {size - 1}: make the image smaller"):
            Image(source)


def test_image_equals_a_stored_part_with_the_same_bytes() -> None:
    image = Image(gradient())
    assert image == ImagePart(data=image.data) and hash(image) == hash(ImagePart(data=image.data))
    assert pickle.loads(pickle.dumps(image)) == image
    assert image != ImagePart(data=b"") and image != "text"


def test_user_message_keeps_text_and_images_in_order() -> None:
    image = Image(gradient())
    message = user(["before", image, "", "after"])
    assert message.parts == (TextPart(text="before"), image, TextPart(text="after"))
    assert (message.content, message.images) == ("beforeafter", (image,))
    assert user(image) == Message(role="user", parts=(image,))
    assert system(["before", image]) == Message(role="system", parts=(TextPart(text="before"), image))


@pytest.mark.parametrize("content", [gradient(), ["Look:", gradient()], {"type": "text", "text": "Look:"}])
def test_message_of_other_content_is_refused(content: Any) -> None:
    with pytest.raises(TypeError, match=r"value of type (ndarray|dict): give text, a tw\.Image made of the image"):
        user(content)


def test_join_lines_keeps_images_between_their_texts() -> None:
    image = Image(gradient())
    assert join_lines(["one", "", ("two", "three"), []]) == "one\ntwothree"
    assert join_lines(["one", ["", image, "two"], "three"]) == ["one\n", image, "two\nthree"]
    assert join_lines([image, ""]) == [image]
    assert join_lines([""]) == ""
