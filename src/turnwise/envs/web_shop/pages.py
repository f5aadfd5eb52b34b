"""The shop's pages: what stands on each, and what can be clicked there. A page never changes; a click gives another."""

import re
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


WISH = re.compile(r"\AWanted: (.+?) with (.+), for at most (\d+) dollars\.\Z")
RESULT = re.compile(r"^\[(B\d+)\] (.+) \$(\d+\.\d\d)$", re.MULTILINE)
OPTION = re.compile(r"^\w+: (\[.+)$", re.MULTILINE)
VALUE = re.compile(r"\[([^\]]+)\]( \(chosen\))?")
TOLD = re.compile(r"^Features: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedGoal:
    """The instruction as it is read."""

    kind: str
    attributes: tuple[str, ...]
    values: tuple[str, ...]
    """Of options."""
    dollars: int


def parse_goal(text: str) -> ParsedGoal:
    found = WISH.match(text)
    if found is None:
        raise ValueError(f"no wish: {text[:80]!r}")
    attributes, *options = found[2].split(", ")
    return ParsedGoal(
        kind=found[1],
        attributes=tuple(attributes.split(" and ")),
        values=tuple(option.partition(" ")[2] for option in options),
        dollars=int(found[3]),
    )


def next_action(wish: str, page: str, seen: Mapping[str, str]) -> str:
    """`seen`: the fullest page of every product that was looked at, by its code."""
    wanted = parse_goal(wish)
    if f"[{BUY}]" in page:
        return _on_product(wanted, page)
    if f"[{BACK}]" in page:
        return _on_results(wanted, page, seen)
    return f"search[{' '.join((wanted.kind, *wanted.attributes, *wanted.values))}]"


def _on_results(wanted: ParsedGoal, page: str, seen: Mapping[str, str]) -> str:
    for code, title, dollars in RESULT.findall(page):
        could_be = wanted.kind in title and float(dollars) <= wanted.dollars
        if could_be and not (code in seen and matches_goal(wanted, seen[code]) is False):
            return f"click[{code}]"
    return f"click[{NEXT if f'[{NEXT}]' in page else BACK}]"


def _on_product(wanted: ParsedGoal, page: str) -> str:
    fitting = matches_goal(wanted, page)
    if fitting is None:
        return f"click[{FEATURES}]"
    if not fitting:
        return f"click[{PREVIOUS}]"
    chosen = {value for line in OPTION.findall(page) for value, mark in VALUE.findall(line) if mark}
    missing = [value for value in wanted.values if value not in chosen]
    return f"click[{missing[0]}]" if missing else f"click[{BUY}]"


def matches_goal(wanted: ParsedGoal, page: str) -> bool | None:
    """Whether a product is what is wanted; None: its features would tell."""
    title, _, price = page.partition("\n")[0].rpartition(" $")
    offered = {value for line in OPTION.findall(page) for value, _ in VALUE.findall(line)}
    if wanted.kind not in title or float(price) > wanted.dollars or not offered.issuperset(wanted.values):
        return False
    if told := TOLD.search(page):
        return set(told[1].split(", ")).issuperset(wanted.attributes)
    return True if all(attribute in title for attribute in wanted.attributes) else None
