"""Addressed randomness: a random number depends on where it is used, never on what ran before it.

start state of a group          random_stream("start", task)
later randomness of a member    random_stream("luck", task, member, attempt)
a sampled token                 uniforms(key.address, index of the token in the episode)

Changing the name of a stream changes its numbers.
"""

import hashlib
import json
import random
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def address(*parts: Any) -> int:
    """Return a 63-bit hash of these parts, equal in every process and on every machine (unlike `hash(str)`)."""
    text = _ENCODER.encode(parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def random_stream(*parts: Any) -> random.Random:
    """Return the random generator of these parts."""
    return random.Random(address(*parts))
