"""A small web shop: pages with buttons, and one product to buy. Each page shows all that matters."""

import random

import turnwise as tw

THINGS = ("book", "box", "card", "game", "map", "tool")
COLORS = ("black", "blue", "green", "red", "white", "yellow")
MATERIALS = ("metal", "wood")


class Shop(tw.TextEnv):
    """Buy what is wanted: click[button]."""

    max_turns = 6
    fully_observable = True
    split_start_states = True  # no product that is evaluated is bought in training

    def reset(self, rng: random.Random) -> str:
        self.wish = (rng.choice(COLORS), rng.choice(MATERIALS), rng.choice(THINGS))
        self.chosen: list[str] = []
        return self.page()

    @property
    def buttons(self) -> tuple[str, ...]:
        """Return the buttons of this page: things, then materials, then colors, then the product's own page."""
        pages = (THINGS, MATERIALS, COLORS, ("buy",))
        return (*pages[len(self.chosen)], *(["back"] if self.chosen else []))

    def page(self) -> str:
        """Return what the agent sees."""
        return f"Wanted: {' '.join(self.wish)}\nPage: {' '.join(self.chosen)}\nButtons: {' '.join(self.buttons)}"

    def step(self, action: str) -> tw.Outcome:
        button = action.removeprefix("click[").removesuffix("]")
        if action != f"click[{button}]" or button not in self.buttons:
            raise ValueError("no such button")
        if button == "buy":
            right = sum(part in self.wish for part in self.chosen)
            return tw.won() if right == len(self.wish) else tw.lost(reward=right / 6)
        self.chosen = self.chosen[:-1] if button == "back" else [*self.chosen, button]
        return tw.goes_on(self.page())

    def random_action(self, rng: random.Random) -> str:
        """Click any button of the page: `tiny` knows no words, and learns the form of clicks in its warm-up."""
        return f"click[{rng.choice(self.buttons)}]"

    def solve(self) -> list[str]:
        color, material, thing = self.wish
        return [f"click[{button}]" for button in (thing, material, color, "buy")[len(self.chosen) :]]

    def state_key(self) -> str:
        return self.page()
