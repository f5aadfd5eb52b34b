"""A player that knows what the page in front of it says, and the pages that it has seen: no more than a model does.

It searches for the words of the wish, looks at what has the right kind and price in the order of the results, reads the
features where the title does not tell enough, chooses and buys.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from turnwise.envs.web_shop.pages import BACK, BUY, FEATURES, NEXT, PREVIOUS

WISH = re.compile(r"\AWanted: (.+?) with (.+), for at most (\d+) dollars\.\Z")
RESULT = re.compile(r"^\[(B\d+)\] (.+) \$(\d+\.\d\d)$", re.MULTILINE)
OPTION = re.compile(r"^\w+: (\[.+)$", re.MULTILINE)
VALUE = re.compile(r"\[([^\]]+)\]( \(chosen\))?")
TOLD = re.compile(r"^Features: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The instruction as it is read."""

    kind: str
    attributes: tuple[str, ...]
    values: tuple[str, ...]
    """Of options."""
    dollars: int


def read_wish(text: str) -> Wanted:
    found = WISH.match(text)
    if found is None:
        raise ValueError(f"no wish: {text[:80]!r}")
    attributes, *options = found[2].split(", ")
    return Wanted(
        kind=found[1],
        attributes=tuple(attributes.split(" and ")),
        values=tuple(option.partition(" ")[2] for option in options),
        dollars=int(found[3]),
    )


def next_action(wish: str, page: str, seen: Mapping[str, str]) -> str:
    """`seen`: the fullest page of every product that was looked at, by its code."""
    wanted = read_wish(wish)
    if f"[{BUY}]" in page:
        return _on_product(wanted, page)
    if f"[{BACK}]" in page:
        return _on_results(wanted, page, seen)
    return f"search[{' '.join((wanted.kind, *wanted.attributes, *wanted.values))}]"


def _on_results(wanted: Wanted, page: str, seen: Mapping[str, str]) -> str:
    for code, title, dollars in RESULT.findall(page):
        could_be = wanted.kind in title and float(dollars) <= wanted.dollars
        if could_be and not (code in seen and fits(wanted, seen[code]) is False):
            return f"click[{code}]"
    return f"click[{NEXT if f'[{NEXT}]' in page else BACK}]"


def _on_product(wanted: Wanted, page: str) -> str:
    fitting = fits(wanted, page)
    if fitting is None:
        return f"click[{FEATURES}]"
    if not fitting:
        return f"click[{PREVIOUS}]"
    chosen = {value for line in OPTION.findall(page) for value, mark in VALUE.findall(line) if mark}
    missing = [value for value in wanted.values if value not in chosen]
    return f"click[{missing[0]}]" if missing else f"click[{BUY}]"


def fits(wanted: Wanted, page: str) -> bool | None:
    """Whether a product is what is wanted; None: its features would tell."""
    title, _, price = page.partition("\n")[0].rpartition(" $")
    offered = {value for line in OPTION.findall(page) for value, _ in VALUE.findall(line)}
    if wanted.kind not in title or float(price) > wanted.dollars or not offered.issuperset(wanted.values):
        return False
    if told := TOLD.search(page):
        return set(told[1].split(", ")).issuperset(wanted.attributes)
    return True if all(attribute in title for attribute in wanted.attributes) else None
