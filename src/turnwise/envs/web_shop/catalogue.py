"""The catalogue: several hundred products, made from a seed, and an instruction for each of them to be looked for."""

import random
from dataclasses import dataclass
from functools import lru_cache

from turnwise.core.random_streams import stream
from turnwise.envs.web_shop.goods import BRANDS, KINDS, STYLES, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    code: str
    """What it is clicked by."""
    title: str
    kind: Kind
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    cents: int

    @property
    def price(self) -> str:
        return f"${self.cents / 100:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants: at least one product is all of it."""

    kind: Kind
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
    rng = stream("web_shop", number, size)
    return tuple(_product(rng, place) for place in range(size))


def _product(rng: random.Random, place: int) -> Product:
    kind = rng.choice(KINDS)
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


def make_wish(rng: random.Random, products: tuple[Product, ...]) -> Wish:
    """A product is drawn first, so that there is one that is all of it."""
    target = rng.choice(products)
    attributes = tuple(sorted(rng.sample(target.attributes, rng.randint(1, 2))))
    options = tuple((name, rng.choice(values)) for name, values in target.options)
    dollars = -(-target.cents // 100) + rng.choice((0, 5, 10, 20))
    return Wish(kind=target.kind, attributes=attributes, options=options, dollars=dollars, target=target)
