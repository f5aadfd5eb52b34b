"""Moves for a player who knows nothing of the game: what is shown in square brackets, and variations of it."""

import random
import re
from collections.abc import Iterator, Sequence

GUESSES = 400
"""Moves that are tried before a player gives up."""
TOKEN = re.compile(r"\[([^\[\]\n]{1,40})\]")
NUMBER = re.compile(r"\d+")
LETTER = re.compile(r"\b[A-Ha-h]\b")


def guesses(shown: Sequence[str], moves: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Moves in the order in which they should be tried: of the newest message first. `moves`: of these alone."""
    if moves:
        yield from rng.sample(moves, len(moves))
        return
    given = set[str]()
    for last in (1, 2, len(shown)):
        fresh = [move for move in bracketed(shown[-last:]) if move not in given]
        given.update(fresh)
        yield from rng.sample(fresh, len(fresh))
    found = bracketed(shown)
    for _ in range(GUESSES - len(given) if found else 0):
        move = varied(rng.choice(found), rng)
        if move not in given:
            given.add(move)
            yield move


def bracketed(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(f"[{token}]" for token in TOKEN.findall("\n".join(texts))))


def varied(token: str, rng: random.Random) -> str:
    """The same shape with other numbers and letters: [col 4] gives [col 2], [A C] gives [B A]."""
    numbers = NUMBER.sub(lambda _: str(rng.randrange(rng.choice((10, 30)))), token)
    return LETTER.sub(lambda found: rng.choice("abcdefgh" if found[0].islower() else "ABCDEFGH"), numbers)
