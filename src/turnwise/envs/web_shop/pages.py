"""The shop's pages: what stands on each, and what can be clicked there. A page never changes; a click gives another."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnwise.envs.web_shop.catalogue import Product

BACK, NEXT, PREVIOUS, FEATURES, BUY = "Back to Search", "Next >", "< Prev", "Features", "Buy Now"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    @property
    def text(self) -> str:
        """Not in brackets: there is nothing to click."""
        return "Search page"

    @property
    def buttons(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsPage:
    found: tuple[Product, ...]
    number: int
    """From 1."""
    per_page: int

    @property
    def pages(self) -> int:
        return max(1, -(-len(self.found) // self.per_page))

    @property
    def shown(self) -> tuple[Product, ...]:
        return self.found[(self.number - 1) * self.per_page : self.number * self.per_page]

    @property
    def text(self) -> str:
        head = f"Page {self.number} of {self.pages}, {len(self.found)} results"
        return "\n".join([head, _row(self._ways), *(f"[{each.code}] {each.title} {each.price}" for each in self.shown)])

    @property
    def _ways(self) -> tuple[str, ...]:
        return (BACK, *[PREVIOUS] * (self.number > 1), *[NEXT] * (self.number < self.pages))

    @property
    def buttons(self) -> tuple[str, ...]:
        return (*self._ways, *(product.code for product in self.shown))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductPage:
    product: Product
    results: ResultsPage
    """Where it was found."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    features: bool = False
    """They are shown."""

    @property
    def text(self) -> str:
        lines = [f"{self.product.title} {self.product.price}"]
        lines += [f"{name}: {self._values(name, values)}" for name, values in self.product.options]
        if self.features:
            lines.append(f"Features: {', '.join(self.product.attributes)}")
        return "\n".join([*lines, _row((BACK, PREVIOUS, FEATURES, BUY))])

    def _values(self, name: str, values: tuple[str, ...]) -> str:
        return " ".join(f"[{value}]{' (chosen)' * (self.chosen.get(name) == value)}" for value in values)

    @property
    def buttons(self) -> tuple[str, ...]:
        values = tuple(value for _, offered in self.product.options for value in offered)
        return (*values, BACK, PREVIOUS, FEATURES, BUY)

    def option_of(self, value: str) -> str:
        """The name of the option that has this value."""
        return next(name for name, values in self.product.options if value in values)


Page = SearchPage | ResultsPage | ProductPage


def _row(names: tuple[str, ...]) -> str:
    return " ".join(f"[{name}]" for name in names)
