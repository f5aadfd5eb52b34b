"""Work that every session would do again: libraries import parts of themselves when these are first used.

Done once in the jailed zygote, its forks find it done: solving a first equation takes a millisecond, not a fifth of a
second.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from turnwise.sandbox.session_loop import seed_everything


def warm_numpy(numpy: Any) -> None:
    importlib.import_module("numpy.random")
    numpy.linalg.inv(numpy.eye(2))
    repr(numpy.arange(3) / 2)


def warm_sympy(sympy: Any) -> None:
    x = sympy.Symbol("x")
    sympy.factor(x**2 - 1)
    sympy.solve(x**2 - 2)
    sympy.integrate(x**2, x)
    sympy.simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2)
    str(sympy.sympify("x + 1/2"))


WARM_UPS: Mapping[str, Callable[[Any], None]] = {"numpy": warm_numpy, "sympy": warm_sympy}


def warm_up(packages: tuple[str, ...]) -> None:
    """Imports the packages and uses each a little."""
    for name in packages:
        module = importlib.import_module(name)
        if name in WARM_UPS:
            WARM_UPS[name](module)
    seed_everything(0)
