"""Images as text: two pixels per character, the upper as its colour and the lower as its background."""

from turnwise.pictures.image import import_pillow, open_image

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
