"""Exercises: a pipeline of operations on a list of integers, as a description, a reference program and tests."""

import random
from collections.abc import Callable
from dataclasses import dataclass

Numbers = list[int]


@dataclass(frozen=True, slots=True)
class ListStep:
    words: str
    code: str
    """Expression of `xs`: the new list, or the value to return."""
    run: Callable[[Numbers], object]


def _operations(rng: random.Random) -> list[ListStep]:
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


RETURNS = (
    ListStep("return the list", "xs", lambda xs: xs),
    ListStep("return the sum", "sum(xs)", sum),
    ListStep("return how many there are", "len(xs)", len),
    ListStep("return the largest, or 0 if there is none", "max(xs, default=0)", lambda xs: max(xs, default=0)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    words: str
    code: str
    run: Callable[[Numbers], object]
    shown: tuple[Numbers, ...]
    """Test inputs that the prompt shows."""
    hidden: tuple[Numbers, ...]

    @property
    def tests(self) -> tuple[Numbers, ...]:
        return self.shown + self.hidden


def make_exercise(rng: random.Random, steps: int, tests: int) -> Exercise:
    """Draw `steps` operations, a return value and `tests` inputs of up to eight numbers, the first two shown."""
    operations = [rng.choice(_operations(rng)) for _ in range(steps)]
    final = rng.choice(RETURNS)
    lines = [f"    xs = {step.code}" for step in operations]
    code = "\n".join(["def f(xs):", *lines, f"    return {final.code}"])
    inputs = tuple(
        [rng.randint(-9, 20) for _ in range(rng.randint(0 if number > 2 else 3, 8))] for number in range(tests)
    )

    def run(xs: Numbers) -> object:
        for step in operations:
            xs = list(step.run(xs))  # type: ignore[call-overload]
        return final.run(xs)

    words = "; then ".join(step.words for step in operations)
    return Exercise(words=f"{words}; then {final.words}", code=code, run=run, shown=inputs[:2], hidden=inputs[2:])
