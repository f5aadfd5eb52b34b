"""Guesses at legal moves without knowing the game: texts in square brackets, and variations of them."""

import random
import re
from collections.abc import Iterator, Sequence

MAX_GUESSES = 400
"""Moves that are tried before a player gives up."""
TOKEN = re.compile(r"\[([^\[\]\n]{1,40})\]")
NUMBER = re.compile(r"\d+")
LETTER = re.compile(r"\b[A-Ha-h]\b")


def guess_moves(messages: Sequence[str], moves: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Yield moves in the order to try them, those of the newest message first; only `moves` if there are any."""
    if moves:
        yield from rng.sample(moves, len(moves))
        return
    tried = set[str]()
    for last in (1, 2, len(messages)):
        fresh = [move for move in bracketed(messages[-last:]) if move not in tried]
        tried.update(fresh)
        yield from rng.sample(fresh, len(fresh))
    bracketed_moves = bracketed(messages)
    for _ in range(MAX_GUESSES - len(tried) if bracketed_moves else 0):
        move = vary(rng.choice(bracketed_moves), rng)
        if move not in tried:
            tried.add(move)
            yield move


def bracketed(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(f"[{token}]" for token in TOKEN.findall("\n".join(texts))))


def vary(token: str, rng: random.Random) -> str:
    """Replace numbers and letters at random: [col 4] becomes [col 2], [A C] becomes [B A]."""
    numbers = NUMBER.sub(lambda _: str(rng.randrange(rng.choice((10, 30)))), token)
    return LETTER.sub(lambda match: rng.choice("abcdefgh" if match[0].islower() else "ABCDEFGH"), numbers)
