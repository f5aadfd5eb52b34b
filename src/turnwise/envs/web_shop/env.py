"""web_shop: buy the product that an instruction describes; the reward is the share of it that the purchase fulfils."""

import random
import re
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from turnwise.core.messages import Content, ImagePart, Picture
from turnwise.envs.picture_env import VisualEnv
from turnwise.envs.seeds import split_of_state
from turnwise.envs.text_env import Outcome, StrictParams, goes_on, lost, won
from turnwise.envs.web_shop.catalogue import Goal, Product, make_catalogue, make_goal, score_purchase, shared_index
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
    page_blocks,
)
from turnwise.pictures.web_page import draw_page

ACTION = re.compile(r"\A(search|click)\s*\[([^\[\]]*)\]\Z", re.IGNORECASE)
"""An action. Brackets do not nest."""
MAX_ARGUMENT_CHARS = 300
"""Longest text in the brackets."""


TEXT_ACTIONS = "Actions: search[words] on the search page, click[name] for anything in brackets."
IMAGE_ACTIONS = (
    "The image shows a page of the shop. Actions: search[words] on the page with the search field, click[name] for a "
    "button, such as click[Next >]; a product's button shows its code. A chosen option is green and has a check mark."
)
ADVICE = (
    "Choose every option before you buy. Features tell what the title does not. Each part of the wish that the "
    "purchase fulfils counts."
)


class WebShop(VisualEnv):
    """Buy what is asked for in a web shop."""

    max_turns = 15
    split_start_states = True
    view_params = (*VisualEnv.view_params, "image_width")

    class Params(StrictParams):
        products: Annotated[int, Field(ge=50, le=5000)] = 500
        """Products in the catalogue, 50 to 5000."""
        shop: Annotated[int, Field(ge=0)] = 0
        """Seed of the catalogue. All splits use the same catalogue."""
        per_page: Annotated[int, Field(ge=3, le=50)] = 10
        """Search results per page, 3 to 50."""
        image_width: Annotated[int, Field(ge=336, le=896)] = 448
        """Width of images in pixels, 336 to 896; the text grows with it. 448 is 16 tokens of Qwen2.5-VL."""

    params: Params

    def rules(self) -> str:
        return f"{super().rules()}\n\n{TEXT_ACTIONS if self.shows_text else IMAGE_ACTIONS} {ADVICE}"

    def reset(self, rng: random.Random) -> Content:
        self.goal = self._draw_goal(rng)
        self.page: Page = SearchPage()
        self.pages_seen: dict[str, str] = {}
        """product code -> the most detailed page of it that was shown"""
        return self.observe()

    def _draw_goal(self, rng: random.Random) -> Goal:
        """Draw a goal in the split of its product: otherwise goals of two splits could differ in the price alone."""
        catalogue = make_catalogue(self.params.shop, self.params.products)
        while True:
            goal = make_goal(rng, catalogue)
            if split_of_state(goal.description) == split_of_state(self._product_key(goal.target)):
                return goal

    def start_key(self) -> str:
        """The product: one that was trained on, at whatever price, does not occur in the test split."""
        return self._product_key(self.goal.target)

    def _product_key(self, product: Product) -> str:
        return f"{self.params.shop}, {self.params.products}: {product.code}"

    def observe(self) -> Content:
        return self.show(self.page.text, before=self.goal.text)

    def draw_image(self) -> ImagePart:
        return draw_page("Web Shop", page_blocks(self.page), self.params.image_width)

    def step(self, action: str) -> Outcome:
        match = ACTION.match(action.strip())
        if match is None or len(match[2]) > MAX_ARGUMENT_CHARS:
            raise ValueError("neither search[...] nor click[...]")
        verb, argument = match[1].lower(), " ".join(match[2].split())
        if verb == "search":
            self.page = self._search(argument)
            return goes_on(self.observe())
        name = next((button for button in self.page.buttons if button.lower() == argument.lower()), None)
        if name is None:
            raise ValueError("no such button on this page")
        return self._buy() if name == BUY else self._click(name)

    def _search(self, query: str) -> ResultsPage:
        if not isinstance(self.page, SearchPage) or not query:
            raise ValueError("search needs words, on the search page")
        products = shared_index(self.params.shop, self.params.products).search(query)
        return ResultsPage(products=products, page_number=1, per_page=self.params.per_page)

    def _click(self, name: str) -> Outcome:
        match self.page:
            case ResultsPage():
                self.page = _from_results(self.page, name)
            case ProductPage():
                self.page = _from_product(self.page, name)
        if isinstance(self.page, ProductPage) and (
            self.page.show_features or self.page.product.code not in self.pages_seen
        ):
            self.pages_seen[self.page.product.code] = self.page.text
        return goes_on(self.observe())

    def _buy(self) -> Outcome:
        if not isinstance(self.page, ProductPage):
            raise ValueError("there is nothing to buy here")
        score = score_purchase(self.goal, self.page.product, self.page.selected)
        text = f"You bought {self.page.product.title}. It is worth {score:.2f} of 1."
        return won(text, score) if score == 1 else lost(text, score)

    def random_action(self, rng: random.Random) -> str:
        """Buying is one button among many, so random play sees pages before it buys."""
        if not self.page.buttons:
            product = rng.choice(make_catalogue(self.params.shop, self.params.products))
            return f"search[{product.product_type.name}]"
        return f"click[{rng.choice(self.page.buttons)}]"

    def solve(self) -> list[str]:
        """The next action of the scripted player, which sees no more than a model does.

        It fails in one task of a thousand, where many products nearly fit and the turns run out.
        """
        return [next_action(self.goal.text, self.page.text, self.pages_seen)]

    def state_key(self) -> str:
        return f"{self.goal.text}\n{self.page.text}"

    def draw(self) -> Picture:
        return Picture(rows=tuple((line,) for line in self.page.text.splitlines()), caption=self.goal.text)


def _from_results(page: ResultsPage, name: str) -> Page:
    if name == BACK:
        return SearchPage()
    if name in (NEXT, PREVIOUS):
        return replace(page, page_number=page.page_number + (1 if name == NEXT else -1))
    return ProductPage(product=next(product for product in page.shown if product.code == name), results=page)


def _from_product(page: ProductPage, name: str) -> Page:
    if name == BACK:
        return SearchPage()
    if name == PREVIOUS:
        return page.results
    if name == FEATURES:
        return replace(page, show_features=True)
    return replace(page, selected={**page.selected, page.option_of(name): name})
