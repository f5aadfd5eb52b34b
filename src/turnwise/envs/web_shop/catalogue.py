"""What the shop may have: kinds of goods with the attributes, options and prices that belong to them."""

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from turnwise.core.random_streams import random_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductType:
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
) -> tuple[ProductType, ...]:
    return tuple(
        ProductType(name=name, department=department, attributes=attributes, options=options, prices=prices)
        for name in names.split(", ")
    )


PRODUCT_TYPES = (
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    code: str
    """What it is clicked by."""
    title: str
    kind: ProductType
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    cents: int

    @property
    def price(self) -> str:
        return f"${self.cents / 100:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What somebody wants: at least one product is all of it."""

    kind: ProductType
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """Name and value."""
    dollars: int
    """It may cost so much."""
    target: Product
    """One that is all of it."""

    @property
    def thing(self) -> str:
        """What is wanted, for whatever price."""
        chosen = "".join(f", {name} {value}" for name, value in self.options)
        return f"{self.kind.name} with {' and '.join(self.attributes)}{chosen}"

    @property
    def text(self) -> str:
        return f"Wanted: {self.thing}, for at most {self.dollars} dollars."


@lru_cache(maxsize=8)
def make_catalogue(number: int, size: int) -> tuple[Product, ...]:
    """Shop `number`: every process makes the same one."""
    rng = random_stream("web_shop", number, size)
    return tuple(_product(rng, place) for place in range(size))


def _product(rng: random.Random, place: int) -> Product:
    kind = rng.choice(PRODUCT_TYPES)
    attributes = tuple(sorted(rng.sample(kind.attributes, rng.randint(2, 3))))
    options = tuple((name, _some(rng, values)) for name, values in kind.options)
    shown = rng.choice(attributes)
    return Product(
        code=f"B{place:04d}",
        title=f"{rng.choice(BRANDS)} {rng.choice(STYLES)} {kind.name}, {shown}",
        kind=kind,
        attributes=attributes,
        options=options,
        cents=rng.randint(kind.prices[0] * 100, kind.prices[1] * 100),
    )


def _some(rng: random.Random, values: tuple[str, ...]) -> tuple[str, ...]:
    """At least two, in the order that they have."""
    chosen = set(rng.sample(values, rng.randint(2, len(values))))
    return tuple(value for value in values if value in chosen)


def make_goal(rng: random.Random, products: tuple[Product, ...]) -> Goal:
    """A product is drawn first, so that there is one that is all of it."""
    target = rng.choice(products)
    attributes = tuple(sorted(rng.sample(target.attributes, rng.randint(1, 2))))
    options = tuple((name, rng.choice(values)) for name, values in target.options)
    dollars = -(-target.cents // 100) + rng.choice((0, 5, 10, 20))
    return Goal(kind=target.kind, attributes=attributes, options=options, dollars=dollars, target=target)


K1, B = 1.2, 0.75
MOST_WORDS = 40
"""Of a query: more say nothing new."""
MOST_RESULTS = 50
WORD = re.compile(r"[a-z0-9]+")


def tokenize(text: str) -> list[str]:
    return WORD.findall(text.lower())


class ProductIndex:
    def __init__(self, products: tuple[Product, ...]) -> None:
        self.products = products
        texts = [tokenize(_indexed(product)) for product in products]
        mean = sum(map(len, texts)) / len(texts)
        known = Counter(word for text in texts for word in set(text))
        self._postings: dict[str, list[tuple[int, float]]] = {word: [] for word in known}
        for place, text in enumerate(texts):
            norm = K1 * (1 - B + B * len(text) / mean)
            for word, count in Counter(text).items():
                rarity = math.log(1 + (len(texts) - known[word] + 0.5) / (known[word] + 0.5))
                self._postings[word].append((place, rarity * count * (K1 + 1) / (count + norm)))

    def search(self, query: str) -> tuple[Product, ...]:
        """The best first, each with at least one word of the query."""
        scores: defaultdict[int, float] = defaultdict(float)
        for word in sorted(set(tokenize(query)[:MOST_WORDS])):
            for place, score in self._postings.get(word, ()):
                scores[place] += score
        best = sorted(scores, key=lambda place: (-round(scores[place], 9), place))[:MOST_RESULTS]
        return tuple(self.products[place] for place in best)


def _indexed(product: Product) -> str:
    values = " ".join(value for _, offered in product.options for value in offered)
    return f"{product.title} {product.kind.department} {' '.join(product.attributes)} {values}"


@lru_cache(maxsize=8)
def shared_index(number: int, size: int) -> ProductIndex:
    return ProductIndex(make_catalogue(number, size))


def score(wish: Goal, bought: Product, chosen: Mapping[str, str]) -> float:
    """`chosen`: values of options by name, as they were when it was bought."""
    attributes = sum(attribute in bought.attributes for attribute in wish.attributes)
    options = sum(chosen.get(name) == value for name, value in wish.options)
    price = bought.cents <= wish.dollars * 100
    return type_match(wish, bought) * (attributes + options + price) / (len(wish.attributes) + len(wish.options) + 1)


def type_match(wish: Goal, bought: Product) -> float:
    if bought.kind == wish.kind:
        return 1.0
    if bought.kind.department == wish.kind.department:
        return 0.5
    return 0.1 if set(tokenize(bought.title)) & set(tokenize(wish.target.title)) else 0.0
