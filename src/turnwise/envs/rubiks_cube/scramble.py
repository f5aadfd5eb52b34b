"""Scrambled cubes, each exactly as many turns from solved as was asked for."""

import random

from turnwise.envs.rubiks_cube.cube import HOLDS, SOLVED, State, renamed
from turnwise.envs.rubiks_cube.solver import rings


def scrambled(rng: random.Random, *, depth: int) -> State:
    """Any of the cubes `depth` turns from solved, in any of the 24 ways to hold it, all equally likely.

    So many random turns would often end nearer to solved: the depth would say little.
    """
    return renamed(rng.choice(rings()[depth]), dict(zip(SOLVED, rng.choice(HOLDS), strict=True)))
