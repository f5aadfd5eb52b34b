"""web_shop: a wish, a shop to search, and a purchase that is worth as much of the wish as it fulfils."""

import random
import re
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from turnwise.core.messages import Picture
from turnwise.envs.seeds import split_of_state
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv, goes_on, lost, won
from turnwise.envs.web_shop.catalogue import Goal, Product, make_catalogue, make_goal, score, shared_index
from turnwise.envs.web_shop.pages import (
    BACK,
    BUY,
    FEATURES,
    NEXT,
    PREVIOUS,
    Page,
    ProductPage,
    ResultsPage,
    SearchPage,
    next_action,
)

ACTION = re.compile(r"\A(search|click)\s*\[([^\[\]]*)\]\Z", re.IGNORECASE)
"""One of them: no brackets within brackets."""
LONGEST = 300
"""Characters of what stands in the brackets."""


class WebShop(TextEnv):
    """Buy what is asked for in a web shop.

    Actions: search[words] on the search page, click[name] for anything in brackets. Choose every option before you
    buy. Features tell what the title does not. Each part of the wish that the purchase fulfils counts."""

    max_turns = 15
    split_start_states = True

    class Params(StrictParams):
        products: Annotated[int, Field(ge=50, le=5000)] = 500
        """Of the catalogue."""
        shop: Annotated[int, Field(ge=0)] = 0
        """The number of the catalogue: each is another one. All splits shop in the same."""
        per_page: Annotated[int, Field(ge=3, le=50)] = 10
        """Results on a page."""

    params: Params

    def reset(self, rng: random.Random) -> str:
        self.wish = self._drawn(rng)
        self.page: Page = SearchPage()
        self.seen: dict[str, str] = {}
        """The fullest page that was shown of each product, by its code."""
        return self.observe()

    def _drawn(self, rng: random.Random) -> Goal:
        """Of the same split as its product: else another's wish might differ from it in the price alone."""
        catalogue = make_catalogue(self.params.shop, self.params.products)
        while True:
            wish = make_goal(rng, catalogue)
            if split_of_state(wish.thing) == split_of_state(self._key(wish.target)):
                return wish

    def start_key(self) -> str:
        """The product: who has learnt to find it in training, for however much, does not meet it in the test."""
        return self._key(self.wish.target)

    def _key(self, product: Product) -> str:
        return f"{self.params.shop}, {self.params.products}: {product.code}"

    def observe(self) -> str:
        return f"{self.wish.text}\n{self.page.text}"

    def step(self, action: str) -> Outcome:
        read = ACTION.match(action.strip())
        if read is None or len(read[2]) > LONGEST:
            raise ValueError("neither search[...] nor click[...]")
        verb, inside = read[1].lower(), " ".join(read[2].split())
        if verb == "search":
            self.page = self._searched(inside)
            return goes_on(self.observe())
        name = next((button for button in self.page.buttons if button.lower() == inside.lower()), None)
        if name is None:
            raise ValueError("no such button on this page")
        return self._bought() if name == BUY else self._clicked(name)

    def _searched(self, query: str) -> ResultsPage:
        if not isinstance(self.page, SearchPage) or not query:
            raise ValueError("search needs words, on the search page")
        found = shared_index(self.params.shop, self.params.products).search(query)
        return ResultsPage(found=found, number=1, per_page=self.params.per_page)

    def _clicked(self, name: str) -> Outcome:
        match self.page:
            case ResultsPage():
                self.page = _from_results(self.page, name)
            case ProductPage():
                self.page = _from_product(self.page, name)
        if isinstance(self.page, ProductPage) and (self.page.features or self.page.product.code not in self.seen):
            self.seen[self.page.product.code] = self.page.text
        return goes_on(self.observe())

    def _bought(self) -> Outcome:
        if not isinstance(self.page, ProductPage):
            raise ValueError("there is nothing to buy here")
        worth = score(self.wish, self.page.product, self.page.chosen)
        told = f"You bought {self.page.product.title}. It is worth {worth:.2f} of 1."
        return won(told, worth) if worth == 1 else lost(told, worth)

    def random_action(self, rng: random.Random) -> str:
        """Buying is one button among many: it comes late enough to see pages."""
        if not self.page.buttons:
            product = rng.choice(make_catalogue(self.params.shop, self.params.products))
            return f"search[{product.kind.name}]"
        return f"click[{rng.choice(self.page.buttons)}]"

    def solve(self) -> list[str]:
        """One click at a time, of a player that sees no more than a model does.

        It wins but for a wish in a thousand, where it runs out of turns among many products that nearly fit."""
        return [next_action(self.wish.text, self.page.text, self.seen)]

    def state_key(self) -> str:
        return self.observe()

    def draw(self) -> Picture:
        return Picture(rows=tuple((line,) for line in self.page.text.splitlines()), caption=self.wish.text)


def _from_results(page: ResultsPage, name: str) -> Page:
    if name == BACK:
        return SearchPage()
    if name in (NEXT, PREVIOUS):
        return replace(page, number=page.number + (1 if name == NEXT else -1))
    return ProductPage(product=next(product for product in page.shown if product.code == name), results=page)


def _from_product(page: ProductPage, name: str) -> Page:
    if name == BACK:
        return SearchPage()
    if name == PREVIOUS:
        return page.results
    if name == FEATURES:
        return replace(page, features=True)
    return replace(page, chosen={**page.chosen, page.option_of(name): name})
