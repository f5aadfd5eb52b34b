"""Functions to write: a few steps on a list of whole numbers, said in words, with a program that does them."""

import random
from collections.abc import Callable
from dataclasses import dataclass

Numbers = list[int]


@dataclass(frozen=True, slots=True)
class ListStep:
    words: str
    code: str
    """From `xs` to the new `xs`, or to a number at the end."""
    run: Callable[[Numbers], object]


def _changes(rng: random.Random) -> list[ListStep]:
    n = rng.randint(2, 9)
    return [
        ListStep(f"add {n} to every number", f"[x + {n} for x in xs]", lambda xs: [x + n for x in xs]),
        ListStep(f"multiply every number by {n}", f"[x * {n} for x in xs]", lambda xs: [x * n for x in xs]),
        ListStep("square every number", "[x * x for x in xs]", lambda xs: [x * x for x in xs]),
        ListStep("keep the even numbers", "[x for x in xs if x % 2 == 0]", lambda xs: [x for x in xs if x % 2 == 0]),
        ListStep(f"keep the numbers above {n}", f"[x for x in xs if x > {n}]", lambda xs: [x for x in xs if x > n]),
        ListStep("reverse the list", "xs[::-1]", lambda xs: xs[::-1]),
        ListStep("sort it, smallest first", "sorted(xs)", sorted),
        ListStep("drop the first number", "xs[1:]", lambda xs: xs[1:]),
        ListStep("drop what came before", "list(dict.fromkeys(xs))", lambda xs: list(dict.fromkeys(xs))),
    ]


def _ends() -> list[ListStep]:
    return [
        ListStep("return the list", "xs", lambda xs: xs),
        ListStep("return the sum", "sum(xs)", sum),
        ListStep("return how many there are", "len(xs)", len),
        ListStep("return the largest, or 0 if there is none", "max(xs, default=0)", lambda xs: max(xs, default=0)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    words: str
    code: str
    run: Callable[[Numbers], object]
    shown: tuple[Numbers, ...]
    hidden: tuple[Numbers, ...]

    @property
    def tests(self) -> tuple[Numbers, ...]:
        return self.shown + self.hidden


def make_exercise(rng: random.Random, steps: int, tests: int) -> Exercise:
    """`steps` changes and an end; tests of lists of up to eight numbers, the first two shown."""
    chosen = [rng.choice(_changes(rng)) for _ in range(steps)]
    end = rng.choice(_ends())
    lines = [f"    xs = {step.code}" for step in chosen]
    code = "\n".join(["def f(xs):", *lines, f"    return {end.code}"])
    inputs = tuple(
        [rng.randint(-9, 20) for _ in range(rng.randint(0 if number > 2 else 3, 8))] for number in range(tests)
    )

    def run(xs: Numbers) -> object:
        for step in chosen:
            xs = list(step.run(xs))  # type: ignore[call-overload]
        return end.run(xs)

    words = "; then ".join(step.words for step in chosen)
    return Exercise(words=f"{words}; then {end.words}", code=code, run=run, shown=inputs[:2], hidden=inputs[2:])
