"""What the shop may have: kinds of goods with the attributes, options and prices that belong to them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    name: str
    department: str
    attributes: tuple[str, ...]
    """Told on the page with features. A product has some of them."""
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """Name and values; a product offers some of the values."""
    prices: tuple[int, int]
    """In dollars, from and to."""


COLORS = ("color", ("black", "blue", "green", "grey", "pink", "red", "white", "yellow"))
CLOTHES_SIZES = ("size", ("small", "medium", "large", "x-large"))
SHOE_SIZES = ("size", ("6", "7", "8", "9", "10", "11"))
FITS = ("machine washable", "slim fit", "long sleeve", "stretch fabric", "quick dry", "pure cotton", "soft wool")
SOLES = ("rubber sole", "non slip", "water resistant", "memory foam", "leather upper", "light weight")
HOMELY = ("easy to clean", "easy to assemble", "solid wood", "stainless steel", "space saving", "fade resistant")
GADGETS = ("fast charging", "wireless", "noise cancelling", "long lasting battery", "high resolution", "usb port")
CARE = ("cruelty free", "fragrance free", "alcohol free", "for sensitive skin", "natural oils", "paraben free")
FOOD = ("gluten free", "sugar free", "low sodium", "organic", "non gmo", "dairy free")


def _kinds(
    department: str,
    names: str,
    attributes: tuple[str, ...],
    options: tuple[tuple[str, tuple[str, ...]], ...],
    prices: tuple[int, int],
) -> tuple[Kind, ...]:
    return tuple(
        Kind(name=name, department=department, attributes=attributes, options=options, prices=prices)
        for name in names.split(", ")
    )


KINDS = (
    *_kinds("clothes", "shirt, sweater, jacket, dress", FITS, (COLORS, CLOTHES_SIZES), (12, 70)),
    *_kinds("shoes", "sneakers, sandals, boots", SOLES, (COLORS, SHOE_SIZES), (20, 120)),
    *_kinds("home", "table lamp, bookshelf, side table, shower curtain", HOMELY, (COLORS,), (15, 160)),
    *_kinds("electronics", "headphones, speaker, tablet, keyboard", GADGETS, (COLORS,), (18, 220)),
    *_kinds(
        "beauty",
        "face cream, shampoo, lip balm",
        CARE,
        (("scent", ("lavender", "lemon", "rose", "vanilla")), ("pack", ("1 pack", "2 pack", "4 pack"))),
        (4, 45),
    ),
    *_kinds(
        "grocery",
        "granola, trail mix, crackers",
        FOOD,
        (("flavor", ("almond", "berry", "chocolate", "coconut", "honey")), ("pack", ("1 pack", "6 pack", "12 pack"))),
        (3, 40),
    ),
)
BRANDS = ("Alder", "Birch", "Cobalt", "Dune", "Ember", "Fjord", "Grove", "Harbor", "Inlet", "Juniper", "Koa", "Lumen")
STYLES = ("classic", "everyday", "modern", "outdoor", "premium", "simple", "travel", "vintage")
