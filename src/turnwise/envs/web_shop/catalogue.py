"""The shop's catalogue: product types, generated products, goals, search by BM25, and the score of a purchase.

Product types are declared in `products.toml`.
"""

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from turnwise.core.random_streams import random_stream
from turnwise.files.package_data import load_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductType:
    name: str
    department: str
    attributes: tuple[str, ...]
    """Shown on the page of features. A product has some of them."""
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """(name, values); a product offers some of the values."""
    prices: tuple[int, int]
    """Lowest and highest price in dollars."""


_DATA = load_toml("turnwise.envs.web_shop", "products.toml")
PRODUCT_TYPES = tuple(
    ProductType(
        name=name,
        department=department,
        attributes=tuple(fields["attributes"]),
        options=tuple((option, tuple(values)) for option, values in fields["options"].items()),
        prices=tuple(fields["prices"]),
    )
    for department, fields in _DATA["departments"].items()
    for name in fields["names"]
)
BRANDS, STYLES = _DATA["brands"], _DATA["styles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    code: str
    """Name of its button."""
    title: str
    product_type: ProductType
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    cents: int

    @property
    def price(self) -> str:
        return f"${self.cents / 100:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """An instruction that at least one product fulfils."""

    product_type: ProductType
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """(name, value)"""
    dollars: int
    """Highest price."""
    target: Product
    """A product that fulfils the goal."""

    @property
    def description(self) -> str:
        """The goal without its price."""
        selected = "".join(f", {name} {value}" for name, value in self.options)
        return f"{self.product_type.name} with {' and '.join(self.attributes)}{selected}"

    @property
    def text(self) -> str:
        return f"Wanted: {self.description}, for at most {self.dollars} dollars."


@lru_cache(maxsize=8)
def make_catalogue(number: int, size: int) -> tuple[Product, ...]:
    """Generate the products of shop `number`; the same in every process."""
    rng = random_stream("web_shop", number, size)
    return tuple(_draw_product(rng, index) for index in range(size))


def _draw_product(rng: random.Random, index: int) -> Product:
    product_type = rng.choice(PRODUCT_TYPES)
    attributes = tuple(sorted(rng.sample(product_type.attributes, rng.randint(2, 3))))
    options = tuple((name, _draw_values(rng, values)) for name, values in product_type.options)
    shown = rng.choice(attributes)
    return Product(
        code=f"B{index:04d}",
        title=f"{rng.choice(BRANDS)} {rng.choice(STYLES)} {product_type.name}, {shown}",
        product_type=product_type,
        attributes=attributes,
        options=options,
        cents=rng.randint(product_type.prices[0] * 100, product_type.prices[1] * 100),
    )


def _draw_values(rng: random.Random, values: tuple[str, ...]) -> tuple[str, ...]:
    """Draw at least two of the values, in their order."""
    selected = set(rng.sample(values, rng.randint(2, len(values))))
    return tuple(value for value in values if value in selected)


def make_goal(rng: random.Random, products: tuple[Product, ...]) -> Goal:
    """Draw a product, then a goal that it fulfils."""
    target = rng.choice(products)
    attributes = tuple(sorted(rng.sample(target.attributes, rng.randint(1, 2))))
    options = tuple((name, rng.choice(values)) for name, values in target.options)
    dollars = -(-target.cents // 100) + rng.choice((0, 5, 10, 20))
    return Goal(
        product_type=target.product_type, attributes=attributes, options=options, dollars=dollars, target=target
    )


K1, B = 1.2, 0.75
MAX_QUERY_WORDS = 40
"""Words of a query that count."""
MAX_RESULTS = 50
WORD = re.compile(r"[a-z0-9]+")


def tokenize(text: str) -> list[str]:
    return WORD.findall(text.lower())


class ProductIndex:
    """BM25 over titles and features (Robertson and Zaragoza 2009); ties are in the order of the catalogue."""

    def __init__(self, products: tuple[Product, ...]) -> None:
        self.products = products
        texts = [tokenize(_index_text(product)) for product in products]
        mean_length = sum(map(len, texts)) / len(texts)
        document_counts = Counter(word for text in texts for word in set(text))
        self._postings: dict[str, list[tuple[int, float]]] = {word: [] for word in document_counts}
        for index, text in enumerate(texts):
            length_norm = K1 * (1 - B + B * len(text) / mean_length)
            for word, count in Counter(text).items():
                idf = math.log(1 + (len(texts) - document_counts[word] + 0.5) / (document_counts[word] + 0.5))
                self._postings[word].append((index, idf * count * (K1 + 1) / (count + length_norm)))

    def search(self, query: str) -> tuple[Product, ...]:
        """Return the products with at least one word of the query, the best first."""
        scores: defaultdict[int, float] = defaultdict(float)
        for word in sorted(set(tokenize(query)[:MAX_QUERY_WORDS])):
            for index, weight in self._postings.get(word, ()):
                scores[index] += weight
        best = sorted(scores, key=lambda index: (-round(scores[index], 9), index))[:MAX_RESULTS]
        return tuple(self.products[index] for index in best)


def _index_text(product: Product) -> str:
    values = " ".join(value for _, offered in product.options for value in offered)
    return f"{product.title} {product.product_type.department} {' '.join(product.attributes)} {values}"


@lru_cache(maxsize=8)
def shared_index(number: int, size: int) -> ProductIndex:
    return ProductIndex(make_catalogue(number, size))


def score_purchase(goal: Goal, bought: Product, selected: Mapping[str, str]) -> float:
    """Score a purchase from 0 to 1 by the formula of WebShop (Yao et al. 2022, arXiv 2207.01206).

        r = r_type * (matching attributes + matching options + price is right) / (attributes + options + 1)

    `selected`: option -> value at the time of the purchase.
    """
    attributes = sum(attribute in bought.attributes for attribute in goal.attributes)
    options = sum(selected.get(name) == value for name, value in goal.options)
    price = bought.cents <= goal.dollars * 100
    return type_match(goal, bought) * (attributes + options + price) / (len(goal.attributes) + len(goal.options) + 1)


def type_match(goal: Goal, bought: Product) -> float:
    """r_type: 1 for the right type, 0.5 for the same department, 0.1 if the titles share a word, else 0.

    The published score estimates this from texts and categories; here it is known.
    """
    if bought.product_type == goal.product_type:
        return 1.0
    if bought.product_type.department == goal.product_type.department:
        return 0.5
    return 0.1 if set(tokenize(bought.title)) & set(tokenize(goal.target.title)) else 0.0
