"""The shop's pages as immutable values with their text and buttons, and a scripted player that reads them.

The player knows only the instruction, the current page and the pages that it has seen, like a model. It searches for
the words of the instruction, opens results of the right type and price in order, reads the features where the title
does not decide, selects the options and buys.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from turnwise.envs.web_shop.catalogue import Product
from turnwise.pictures.web_page import Block, Blocks, Buttons, Heading, Item, Paragraph, SearchField

BACK, NEXT, PREVIOUS, FEATURES, BUY = "Back to Search", "Next >", "< Prev", "Features", "Buy Now"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    @property
    def text(self) -> str:
        """Without brackets: there is nothing to click."""
        return "Search page"

    @property
    def buttons(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsPage:
    products: tuple[Product, ...]
    page_number: int
    """Starts at 1."""
    per_page: int

    @property
    def num_pages(self) -> int:
        return max(1, -(-len(self.products) // self.per_page))

    @property
    def shown(self) -> tuple[Product, ...]:
        return self.products[(self.page_number - 1) * self.per_page : self.page_number * self.per_page]

    @property
    def text(self) -> str:
        items = (f"[{product.code}] {product.title} {product.price}" for product in self.shown)
        return "\n".join([self.head, _button_row(self.navigation), *items])

    @property
    def head(self) -> str:
        return f"Page {self.page_number} of {self.num_pages}, {len(self.products)} results"

    @property
    def navigation(self) -> tuple[str, ...]:
        return (BACK, *[PREVIOUS] * (self.page_number > 1), *[NEXT] * (self.page_number < self.num_pages))

    @property
    def buttons(self) -> tuple[str, ...]:
        return (*self.navigation, *(product.code for product in self.shown))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductPage:
    product: Product
    results: ResultsPage
    """The results page that led here."""
    selected: Mapping[str, str] = field(default_factory=dict)
    show_features: bool = False
    """The list of features is shown."""

    @property
    def text(self) -> str:
        lines = [f"{self.product.title} {self.product.price}"]
        lines += [f"{name}: {self._values(name, values)}" for name, values in self.product.options]
        if self.show_features:
            lines.append(f"Features: {', '.join(self.product.attributes)}")
        return "\n".join([*lines, _button_row((BACK, PREVIOUS, FEATURES, BUY))])

    def _values(self, name: str, values: tuple[str, ...]) -> str:
        return " ".join(f"[{value}]{' (chosen)' * (self.selected.get(name) == value)}" for value in values)

    @property
    def buttons(self) -> tuple[str, ...]:
        values = tuple(value for _, offered in self.product.options for value in offered)
        return (*values, BACK, PREVIOUS, FEATURES, BUY)

    def option_of(self, value: str) -> str:
        """Return the option that has this value."""
        return next(name for name, values in self.product.options if value in values)


Page = SearchPage | ResultsPage | ProductPage


def _button_row(names: tuple[str, ...]) -> str:
    return " ".join(f"[{name}]" for name in names)


GOAL = re.compile(r"\AWanted: (.+?) with (.+), for at most (\d+) dollars\.\Z")
RESULT = re.compile(r"^\[(B\d+)\] (.+) \$(\d+\.\d\d)$", re.MULTILINE)
OPTION = re.compile(r"^\w+: (\[.+)$", re.MULTILINE)
VALUE = re.compile(r"\[([^\]]+)\]( \(chosen\))?")
FEATURE_LIST = re.compile(r"^Features: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedGoal:
    """The instruction as the player parses it."""

    product_type: str
    attributes: tuple[str, ...]
    values: tuple[str, ...]
    """Values of options."""
    dollars: int


def parse_goal(text: str) -> ParsedGoal:
    match = GOAL.match(text)
    if match is None:
        raise ValueError(f"not an instruction: {text[:80]!r}")
    attributes, *options = match[2].split(", ")
    return ParsedGoal(
        product_type=match[1],
        attributes=tuple(attributes.split(" and ")),
        values=tuple(option.partition(" ")[2] for option in options),
        dollars=int(match[3]),
    )


def next_action(instruction: str, page: str, pages_seen: Mapping[str, str]) -> str:
    """`pages_seen`: product code -> the most detailed page of it so far"""
    goal = parse_goal(instruction)
    if f"[{BUY}]" in page:
        return _on_product(goal, page)
    if f"[{BACK}]" in page:
        return _on_results(goal, page, pages_seen)
    return f"search[{' '.join((goal.product_type, *goal.attributes, *goal.values))}]"


def _on_results(goal: ParsedGoal, page: str, pages_seen: Mapping[str, str]) -> str:
    for code, title, dollars in RESULT.findall(page):
        is_candidate = goal.product_type in title and float(dollars) <= goal.dollars
        if is_candidate and not (code in pages_seen and matches_goal(goal, pages_seen[code]) is False):
            return f"click[{code}]"
    return f"click[{NEXT if f'[{NEXT}]' in page else BACK}]"


def _on_product(goal: ParsedGoal, page: str) -> str:
    matches = matches_goal(goal, page)
    if matches is None:
        return f"click[{FEATURES}]"
    if not matches:
        return f"click[{PREVIOUS}]"
    selected = {value for line in OPTION.findall(page) for value, selected_mark in VALUE.findall(line) if selected_mark}
    missing = [value for value in goal.values if value not in selected]
    return f"click[{missing[0]}]" if missing else f"click[{BUY}]"


def matches_goal(goal: ParsedGoal, page: str) -> bool | None:
    """Return whether the product on this page fulfils the goal; None: its features decide."""
    title, _, price = page.partition("\n")[0].rpartition(" $")
    offered = {value for line in OPTION.findall(page) for value, _ in VALUE.findall(line)}
    if goal.product_type not in title or float(price) > goal.dollars or not offered.issuperset(goal.values):
        return False
    if feature_list := FEATURE_LIST.search(page):
        return set(feature_list[1].split(", ")).issuperset(goal.attributes)
    return True if all(attribute in title for attribute in goal.attributes) else None


def page_blocks(page: Page) -> Blocks:
    match page:
        case SearchPage():
            return Heading(text="Search page"), SearchField(hint="Search for products")
        case ResultsPage():
            items = (Item(button=product.code, text=product.title, price=product.price) for product in page.shown)
            return Paragraph(text=page.head), Buttons(names=page.navigation), *items
        case ProductPage():
            return _product_blocks(page)


def _product_blocks(page: ProductPage) -> Blocks:
    product = page.product
    blocks: list[Block] = [Heading(text=product.title, price=product.price)]
    blocks += [Buttons(label=name, names=values, selected=page.selected.get(name)) for name, values in product.options]
    if page.show_features:
        blocks.append(Paragraph(text=f"Features: {', '.join(product.attributes)}"))
    return *blocks, Buttons(names=(BACK, PREVIOUS, FEATURES, BUY), main=BUY)
