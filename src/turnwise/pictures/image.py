"""`tw.Image`: an image of an environment or tool, checked and encoded as an RGB PNG file."""

import io
import sys
import warnings
from typing import Any

from turnwise.core.errors import ImageError, UserError
from turnwise.core.messages import ImagePart
from turnwise.text.truncation import shorten

MAX_SIDE, MAX_PIXELS = 8192, 1 << 24
"""Larger images are rejected before they are decoded: no model sees as many pixels."""
MAX_IMAGE_BYTES = 32 << 20
"""Bytes of an encoded image, given or stored."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats of encoded images; of an animation, the first frame is used."""
ORIENTATION = 0x0112
"""EXIF tag that says how a camera was held."""
UPRIGHT = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""Transposition that makes an image upright, by orientation; 1 is upright."""
CHANNELS = (1, 3, 4)
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
"""First bytes of a PNG file."""


class Image(ImagePart):
    """An image to show to the model: a Pillow image, a uint8 array of (height, width[, channels]), or PNG bytes.

    JPEG, WebP and GIF bytes work too. Stored as an RGB PNG file: transparent pixels become white, 16-bit values keep
    their high byte, and photos are rotated as their EXIF data says. Raises UserError for anything else, for broken
    images, and for images of more than MAX_PIXELS pixels, MAX_SIDE on a side or MAX_IMAGE_BYTES bytes.
    """

    __slots__ = ()

    def __init__(self, source: Any) -> None:
        data = _to_png(source)
        _check_bytes(data)
        object.__setattr__(self, "data", data)


def import_pillow() -> Any:
    """Return the package, or raise an error that says how to install it."""
    try:
        import PIL.Image
        import PIL.ImageDraw
    except ImportError as error:
        raise UserError("Images need Pillow. Run `pip install 'turnwise[pictures]'`.") from error
    return PIL


def is_image(value: Any) -> bool:
    """Return whether the value is a `tw.Image`, a Pillow image or the bytes of a PNG file."""
    pillow = sys.modules.get("PIL.Image")  # a program that has such images has imported it
    if isinstance(value, bytes):
        return value.startswith(PNG_SIGNATURE)
    return isinstance(value, ImagePart) or (pillow is not None and isinstance(value, pillow.Image))


def encode_png(image: Any) -> bytes:
    """Encode a Pillow image. Equal pixels give equal bytes."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)  # of a board: half the time of the default, 15 % more bytes
    return buffer.getvalue()


def _to_png(source: Any) -> bytes:
    if isinstance(source, ImagePart):
        return _from_bytes(source.data)
    if isinstance(source, bytes | bytearray | memoryview):
        return _from_bytes(bytes(source))
    pil = import_pillow()
    if isinstance(source, pil.Image.Image):
        return encode_png(to_rgb(_load(source)))
    if hasattr(source, "__array_interface__"):
        return encode_png(to_rgb(_from_array(source)))
    raise ImageError(f"{type(source).__name__}: give a Pillow image, a uint8 array of (height, width, 3), or PNG bytes")


def _load(image: Any) -> Any:
    """Read the pixels of a Pillow image, whose file may be broken or closed by now."""
    _check_size(*image.size)
    try:
        image.load()
    except Exception as error:  # decoders raise whatever broken bytes lead to
        raise ImageError(f"a Pillow image without pixels ({_describe(error)}): keep its file open and whole") from error
    return image


def _from_bytes(data: bytes) -> bytes:
    """Decode the whole file, so that broken bytes are found here and not in the middle of a training step."""
    image = open_image(data)
    return data if image.format == "PNG" and _is_plain(image) else encode_png(to_rgb(image))


def open_image(data: bytes) -> Any:
    """Decode an image file to a Pillow image. Raises ImageError if it is broken, too large or of another format."""
    _check_bytes(data)
    pil = import_pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pil.Image.DecompressionBombWarning)  # the size is checked below
            image = pil.Image.open(io.BytesIO(data), formats=FORMATS)
            _check_size(*image.size)
            image.load()
    except ImageError:
        raise
    except pil.Image.DecompressionBombError as error:
        raise ImageError(f"an image of more than {MAX_PIXELS} pixels: make it smaller") from error
    except Exception as error:  # decoders raise whatever broken bytes lead to
        unknown = isinstance(error, pil.UnidentifiedImageError)  # its message is only the address of the buffer
        reason = "" if unknown else f" ({_describe(error)})"
        raise ImageError(f"{len(data)} bytes that are not a PNG, JPEG, WebP or GIF{reason}") from error
    return image


def _describe(error: Exception) -> str:
    return shorten(" ".join(f"{type(error).__name__}: {error}".split()), 120)


def _from_array(source: Any) -> Any:
    """Return an array as a Pillow image."""
    interface = source.__array_interface__
    shape, kind = tuple(interface["shape"]), interface["typestr"].lstrip("|<>=")
    if kind != "u1" or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in CHANNELS)):
        dtype = getattr(source, "dtype", kind)
        raise ImageError(f"an array of {dtype} with shape {shape}: give uint8 values of shape (height, width, 3)")
    _check_size(shape[1], shape[0])
    grey = source[:, :, 0] if len(shape) == 3 and shape[2] == 1 else source
    return import_pillow().Image.fromarray(grey)


def _check_bytes(data: bytes) -> None:
    if len(data) > MAX_IMAGE_BYTES:
        raise ImageError(f"{len(data)} bytes, more than {MAX_IMAGE_BYTES}: make the image smaller")


def _check_size(width: int, height: int) -> None:
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise ImageError(
            f"{width} x {height} pixels: give 1 to {MAX_SIDE} on each side and at most {MAX_PIXELS} in all"
        )


def to_rgb(image: Any) -> Any:
    """Return the image as a viewer shows it: opaque on white, upright, 8 bits per channel. Raises ImageError."""
    if _is_plain(image):
        return image
    pil = import_pillow()
    turn = _turn_upright(image)
    upright = image if turn is None else image.transpose(pil.Image.Transpose[turn])
    if image.has_transparency_data:
        opaque = pil.Image.new("RGBA", upright.size, "white")
        opaque.alpha_composite(upright.convert("RGBA"))
        return opaque.convert("RGB")
    if image.mode in ("I", "F"):
        raise ImageError(f"a Pillow image of mode {image.mode}, whose range is unknown: scale it and convert it to RGB")
    if image.mode.startswith("I;16"):
        upright = upright.convert("I").point(lambda value: value / 256)  # else values above 255 become 255
    return upright.convert("RGB")


def _is_plain(image: Any) -> bool:
    """Return whether the image is opaque RGB, upright and not animated, as browsers show the file too."""
    plain = image.mode == "RGB" and "transparency" not in image.info and not getattr(image, "is_animated", False)
    return plain and _turn_upright(image) is None


def _turn_upright(image: Any) -> str | None:
    """Return what makes a photo upright; None if it is, or if its EXIF data is broken."""
    try:
        return UPRIGHT.get(image.getexif().get(ORIENTATION))
    except Exception:  # the parser raises whatever broken data leads to, and most programs ignore such data
        return None


HALF_BLOCK = "\N{UPPER HALF BLOCK}"


def image_to_text(data: bytes, max_columns: int) -> str:
    """Return an encoded image as lines of 24-bit colours, scaled down to `max_columns` characters."""
    image = open_image(data).convert("RGB")
    width = min(image.width, max_columns)
    height = max(2, 2 * round(image.height * width / image.width / 2))
    pixels = image.resize((width, height), import_pillow().Image.Resampling.BOX).load()
    return "\n".join(
        "".join(_cell(pixels[x, y], pixels[x, y + 1]) for x in range(width)) + "\x1b[0m" for y in range(0, height, 2)
    )


def _cell(upper: tuple[int, int, int], lower: tuple[int, int, int]) -> str:
    over, under = ";".join(map(str, upper)), ";".join(map(str, lower))
    return f"\x1b[38;2;{over}m\x1b[48;2;{under}m{HALF_BLOCK}"
