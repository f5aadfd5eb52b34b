"""`tw.Image`: an image of an environment or tool, checked and encoded as an RGB PNG file."""

import io
import warnings
from typing import Any

from turnwise.core.errors import ImageError, UserError
from turnwise.core.messages import ImagePart

MAX_SIDE, MAX_PIXELS = 8192, 1 << 24
"""Larger images are rejected before they are decoded: no model sees as many pixels."""
MAX_IMAGE_BYTES = 32 << 20
"""Bytes of an encoded image, given or stored."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats of encoded images; of an animation, the first frame is used."""
CHANNELS = (1, 3, 4)
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
"""First bytes of a PNG file."""


class Image(ImagePart):
    """An image to show to the model: a Pillow image, a uint8 array of (height, width[, channels]), or PNG bytes.

    JPEG, WebP and GIF bytes work too. Stored as an RGB PNG file; what is transparent becomes white. Raises UserError
    for anything else, for broken bytes, and for images of more than MAX_PIXELS pixels, MAX_SIDE on a side or
    MAX_IMAGE_BYTES bytes.
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
        raise UserError("Images need Pillow: pip install 'turnwise[pictures]'.") from error
    return PIL


def encode_png(image: Any) -> bytes:
    """Encode a Pillow image. Equal pixels give equal bytes."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)  # of a board: half the time of the default, 15 % more bytes
    return buffer.getvalue()


def _to_png(source: Any) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return _from_bytes(bytes(source))
    pil = import_pillow()
    if isinstance(source, pil.Image.Image):
        _check_size(*source.size)
        return encode_png(_to_rgb(source))
    if hasattr(source, "__array_interface__"):
        return encode_png(_to_rgb(_from_array(source)))
    raise ImageError(f"{type(source).__name__}: give a Pillow image, a uint8 array of (height, width, 3), or PNG bytes")


def _from_bytes(data: bytes) -> bytes:
    """Decode the whole file, so that broken bytes are found here and not in the middle of a training step."""
    image = open_image(data)
    return data if image.format == "PNG" and _is_plain(image) else encode_png(_to_rgb(image))


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
        reason = "" if unknown else " (" + " ".join(f"{type(error).__name__}: {error}".split())[:120] + ")"
        raise ImageError(f"{len(data)} bytes that are not a PNG, JPEG, WebP or GIF{reason}") from error
    return image


def _is_plain(image: Any) -> bool:
    return image.mode == "RGB" and "transparency" not in image.info


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


def _to_rgb(image: Any) -> Any:
    if _is_plain(image):
        return image
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        opaque = import_pillow().Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
        return opaque.convert("RGB")
    return image.convert("RGB")
