"""web_shop: every goal can be fulfilled, buttons work, and a purchase scores the share that it fulfils."""

import asyncio
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Split, Task
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.envs.text_env import Outcome
from turnwise.envs.web_shop.catalogue import (
    MAX_RESULTS,
    PRODUCT_TYPES,
    Product,
    ProductIndex,
    make_catalogue,
    make_goal,
    score_purchase,
    shared_index,
    type_match,
)
from turnwise.envs.web_shop.env import WebShop
from turnwise.envs.web_shop.pages import next_action

NAME, SIZE = "web_shop", 500


def make(index: int = 0, split: Split = "train", **params: Any) -> Any:
    runner = load_spec(NAME).make(Task(env=NAME, seed=seed_for(split, index), split=split, params=params))
    runner.opening = asyncio.run(runner.start()).messages[1].content
    return runner


def act(runner: Any, action: str) -> StepResult:
    result: StepResult = asyncio.run(runner.step(assistant(f"<answer>{action}</answer>")))
    return result


def make_shop(seed: int = 0, **params: Any) -> WebShop:
    env = WebShop(params)
    env.reset(random.Random(seed))
    return env


def to_product(env: WebShop) -> None:
    """Go to the page of the target product."""
    env.step(f"search[{env.goal.target.title} {' '.join(env.goal.target.attributes)}]")
    while env.goal.target.code not in env.page.buttons:
        env.step("click[Next >]")
    env.step(f"click[{env.goal.target.code}]")


def played(env: WebShop) -> list[Outcome]:
    """Let the player act until the episode or its turns end."""
    outcomes = []
    while len(outcomes) < env.max_turns and not (outcomes and outcomes[-1].over):
        (action,) = env.solve()
        outcomes.append(env.step(action))
    return outcomes


@pytest.mark.parametrize("params", [{}, {"products": 60, "per_page": 5}, {"shop": 3}], ids=str)
def test_player_buys_the_goal_within_the_turns(params: dict[str, Any]) -> None:
    won = 0
    for index in range(50):
        runner, results = make(index, **params), list[StepResult]()
        while not (results and results[-1].over):
            (action,) = runner.env.solve()
            results.append(act(runner, action))
        assert not any(result.invalid for result in results)
        won += results[-1].success
        assert sum(result.reward for result in results) == results[-1].reward
    assert won >= 49


def test_player_uses_only_what_its_pages_show() -> None:
    """It acts the same if another product is behind the same words."""
    for seed in range(40):
        env, blind = make_shop(seed), make_shop(seed)
        blind.goal = replace(blind.goal, target=make_catalogue(0, SIZE)[0])
        for _ in range(env.max_turns):
            assert env.solve() == blind.solve()
            (action,) = env.solve()
            if env.step(action).over:
                break
            blind.step(action)


def test_player_reads_features_if_the_title_is_not_enough() -> None:
    page = "Koa classic shirt, slim fit $20.00\ncolor: [red] [blue] (chosen)\n"
    row = "[Back to Search] [< Prev] [Features] [Buy Now]"
    goal = "Wanted: shirt with slim fit{more}, color {color}, for at most {dollars} dollars."

    def said(more: str = "", color: str = "blue", dollars: int = 20, features: str = "") -> str:
        text = goal.format(more=more, color=color, dollars=dollars)
        return next_action(text, page + features + row, {})

    assert said() == "click[Buy Now]" and said(color="red") == "click[red]"
    assert said(color="green") == said(dollars=19) == "click[< Prev]"
    assert said(more=" and quick dry") == "click[Features]"
    assert said(more=" and quick dry", features="Features: quick dry, slim fit\n") == "click[Buy Now]"
    assert said(more=" and quick dry", features="Features: slim fit, soft wool\n") == "click[< Prev]"


def test_player_skips_products_that_did_not_fit() -> None:
    goal = "Wanted: shirt with slim fit, color blue, for at most 20 dollars."
    page = "Page 1 of 2, 12 results\n[Back to Search]{next}\n[B0001] Koa shirt, a $9.00\n[B0002] Koa shirt, a $9.00"
    first, more = page.format(next=" [Next >]"), page.format(next="")
    wrong = "Koa shirt, a $9.00\ncolor: [red]\n[Buy Now]"
    assert (
        next_action(goal, first, {}) == "click[B0001]" and next_action(goal, first, {"B0001": wrong}) == "click[B0002]"
    )
    both = {"B0001": wrong, "B0002": wrong}
    assert (
        next_action(goal, first, both) == "click[Next >]" and next_action(goal, more, both) == "click[Back to Search]"
    )
    assert next_action(goal, first.replace("9.00", "21.00"), {}) == "click[Next >]"
    assert next_action(goal, first.replace("Koa shirt", "Koa boots"), {}) == "click[Next >]"


def test_every_goal_is_fulfilled_by_its_target() -> None:
    products, rng = make_catalogue(0, SIZE), random.Random(0)
    ranking = shared_index(0, SIZE)
    for product in products:
        goal = make_goal(rng, (product,))
        assert score_purchase(goal, product, dict(goal.options)) == 1.0
        assert product in ranking.search(f"{product.title} {' '.join(product.attributes)}")[:50]


def test_player_has_an_action_on_every_page() -> None:
    rng, won = random.Random(3), 0
    for seed in range(60):
        env = make_shop(seed)
        for _ in range(rng.randrange(8)):
            action = env.random_action(rng)
            if action != "click[Buy Now]":
                env.step(action)
        won += played(env)[-1].success
    assert won >= 58


def test_catalogue_depends_on_its_number_alone() -> None:
    products = make_catalogue(0, SIZE)
    assert len({product.code for product in products}) == SIZE and products == make_catalogue.__wrapped__(0, SIZE)
    assert products != make_catalogue(1, SIZE)
    assert {product.product_type for product in products} == set(PRODUCT_TYPES)
    for product in products:
        assert product.product_type.prices[0] * 100 <= product.cents <= product.product_type.prices[1] * 100
        assert set(product.attributes) <= set(product.product_type.attributes) and len(product.options) == len(
            product.product_type.options
        )


def test_option_values_are_unambiguous_buttons() -> None:
    for product_type in PRODUCT_TYPES:
        values = [value for _, offered in product_type.options for value in offered]
        assert len(values) == len(set(values)) and not {"buy now", "features"} & set(values)


def other(products: tuple[Product, ...], goal: Any, **differs: bool) -> Product:
    """Return a product of another type, in the same department or not."""
    return next(
        product
        for product in products
        if product.product_type != goal.product_type
        and (product.product_type.department == goal.product_type.department) == differs["same_department"]
        and bool(set(product.title.lower().split()) & set(goal.target.title.lower().split())) == differs["shares_word"]
    )


def test_score_is_the_share_of_the_goal_that_is_fulfilled() -> None:
    products, rng = make_catalogue(0, SIZE), random.Random(1)
    goal = next(
        goal for _ in range(1000) if len((goal := make_goal(rng, products)).attributes) == 2 and len(goal.options) == 2
    )
    target, selected = goal.target, dict(goal.options)
    assert score_purchase(goal, target, selected) == 1.0
    assert score_purchase(goal, target, {}) == pytest.approx(3 / 5), "two attributes and the price"
    assert score_purchase(goal, target, {**selected, goal.options[0][0]: "nothing"}) == pytest.approx(4 / 5)
    dear = replace(target, cents=goal.dollars * 100 + 1)
    assert score_purchase(goal, dear, selected) == pytest.approx(4 / 5)
    assert score_purchase(goal, replace(target, cents=goal.dollars * 100), selected) == 1.0
    plain = replace(target, attributes=goal.attributes[:1])
    assert score_purchase(goal, plain, selected) == pytest.approx(4 / 5)
    assert score_purchase(goal, replace(target, attributes=()), {}) == pytest.approx(1 / 5)


def test_score_falls_with_the_distance_of_the_type() -> None:
    products, goal = make_catalogue(0, SIZE), make_goal(random.Random(2), make_catalogue(0, SIZE))
    near = other(products, goal, same_department=True, shares_word=False)
    word = other(products, goal, same_department=False, shares_word=True)
    far = other(products, goal, same_department=False, shares_word=False)
    assert [type_match(goal, each) for each in (goal.target, near, word, far)] == [1.0, 0.5, 0.1, 0.0]
    assert score_purchase(goal, far, dict(goal.options)) == 0.0


def test_reward_is_the_score_and_success_is_a_full_score() -> None:
    runner = make(4)
    to_product(runner.env)
    bought = act(runner, "click[buy now]")
    goal = runner.env.goal
    share = (len(goal.attributes) + 1) / (len(goal.attributes) + len(goal.options) + 1)
    assert bought.terminated and not bought.success and bought.reward == pytest.approx(share)
    assert all(outcome.reward == 0 and not outcome.over for outcome in played(make(5).env)[:-1])


def test_selected_options_are_shown_and_can_be_changed() -> None:
    env = make_shop(next(seed for seed in range(50) if len(make_shop(seed).goal.options) == 2))
    to_product(env)
    (first, values), _ = env.goal.target.options
    env.step(f"click[{values[0]}]")
    assert f"[{values[0]}] (chosen)" in env.observe()
    env.step(f"click[{values[1].upper()}]")
    assert f"[{values[1]}] (chosen)" in env.observe() and f"[{values[0]}] (chosen)" not in env.observe()
    assert "Features:" not in env.observe()
    env.step("click[Features]")
    assert f"Features: {', '.join(env.goal.target.attributes)}" in env.observe()
    assert f"[{values[1]}] (chosen)" in env.observe(), "looking at features keeps what was chosen"
    env.step("click[< Prev]")
    assert "Page " in env.observe()
    env.step("click[Back to Search]")
    assert env.observe() == f"{env.goal.text}\nSearch page"
    assert first


def test_results_are_paginated() -> None:
    env = make_shop(0, per_page=10)
    env.step("search[shirt]")
    pages_seen, count = [], 0
    while True:
        count += 1
        assert f"Page {count} of " in env.observe()
        pages_seen += [line[1:6] for line in env.observe().splitlines() if line.startswith("[B0")]
        if "[Next >]" not in env.observe():
            break
        env.step("click[Next >]")
    assert len(pages_seen) == len(set(pages_seen)) and pages_seen == [
        product.code for product in shared_index(0, SIZE).search("shirt")
    ]
    with pytest.raises(ValueError):
        env.step("click[Next >]")
    for _ in range(count - 1):
        env.step("click[< Prev]")
    assert "[< Prev]" not in env.observe() and "Page 1 of" in env.observe()


@pytest.mark.parametrize(
    "action",
    [
        "click[Buy Now]",
        "click[B0001]",
        "click[Next >]",
        "click[]",
        "search[]",
        "search[   ]",
        "buy",
        "search",
        "search red shirt",
        "search[red] click[shirt]",
        "search[red] || search[shirt]",
        "click[Back to Search",
        "search[" + "a" * 1000 + "]",
        "search[a] || click[b]" + "\0",
        "javascript:alert(1)",
    ],
)
def test_invalid_action_changes_nothing_and_repeats_the_page(action: str) -> None:
    runner = make(0)
    result = act(runner, action)
    assert result.invalid and not result.over and result.reward == 0
    problem, _, page = result.messages[0].content.partition("\n")
    assert problem.startswith("Invalid action: ") and page == runner.opening


def test_search_works_only_on_the_search_page() -> None:
    runner = make(0)
    assert not act(runner, "search[shirt]").invalid
    assert act(runner, "search[shoes]").invalid
    assert not act(runner, "click[back to search]").invalid
    assert not act(runner, "Search[ shoes ]").invalid


def test_search_ranks_products_with_the_words() -> None:
    ranking = ProductIndex(make_catalogue(0, SIZE))
    found = ranking.search("wireless noise cancelling headphones")
    assert found[0].product_type.name == "headphones" and {"wireless", "noise cancelling"} <= set(found[0].attributes)
    assert ranking.search("zzz qqq") == () and len(ranking.search("red blue small large")) == MAX_RESULTS
    assert ranking.search("SHAMPOO!!") == ranking.search("shampoo")
    assert ranking.search("shampoo " * 5000) == ranking.search("shampoo")


def test_rare_words_weigh_more_than_common_ones() -> None:
    products = make_catalogue(0, SIZE)
    ranking = ProductIndex(products)
    rare = ranking.search("lavender red")
    assert any(value == "lavender" for _, offered in rare[0].options for value in offered)


def test_episode_ends_after_fifteen_turns() -> None:
    runner = make(0)
    results = [act(runner, "click[nothing]") for _ in range(15)]
    assert [result.over for result in results] == [False] * 14 + [True] and not results[-1].success
    assert "at most 15 turns" in asyncio.run(load_spec(NAME).make(Task(env=NAME, seed=0)).start()).messages[0].content


@pytest.mark.parametrize("params", [{}, {"products": 60, "per_page": 5}], ids=str)
def test_splits_share_no_product_and_no_goal(params: dict[str, Any]) -> None:
    """A goal that differs from a training goal in the price alone would test nothing."""
    splits: tuple[Split, ...] = ("train", "validation", "test")
    wishes = {split: [make(index, split, **params).env.goal for index in range(150)] for split in splits}
    for kept in (lambda goal: goal.target.code, lambda goal: goal.description):
        train, validation, test = ({kept(goal) for goal in wishes[split]} for split in splits)
        assert not (train & validation or train & test or validation & test)
        assert min(len(train), len(validation), len(test)) >= 8
    assert len({goal.text for goal in wishes["test"]}) >= 50


def test_state_key_is_the_page_and_start_key_the_product() -> None:
    env = make_shop(0)
    start = env.state_key()
    assert start == env.observe() and env.goal.target.code not in start
    env.step("search[shirt]")
    assert env.state_key() not in (start, env.start_key())


def test_random_play_never_raises_and_rarely_succeeds() -> None:
    won = 0
    for seed in range(60):
        env, rng = make_shop(seed), random.Random(seed)
        for _ in range(15):
            outcome = env.step(env.random_action(rng))
            assert 0 <= outcome.reward <= 1 and env.draw().rows
            if outcome.over:
                won += outcome.success
                break
    assert won <= 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=30) | st.text(max_size=20).map(lambda text: f"search[{text}]"), max_size=8))
def test_no_text_raises_unexpected_errors(texts: list[str]) -> None:
    env = make_shop(0)
    for text in texts:
        before = env.state_key()
        try:
            assert not env.step(text).over
        except ValueError:
            assert env.state_key() == before, "an invalid action changes nothing"


def test_everything_in_brackets_can_be_clicked() -> None:
    for seed in range(20):
        env, rng = make_shop(seed), random.Random(seed)
        for _ in range(8):
            assert set(re.findall(r"\[(.+?)\]", env.page.text)) == set(env.page.buttons)
            action = env.random_action(rng)
            if env.step(action).over:
                break
