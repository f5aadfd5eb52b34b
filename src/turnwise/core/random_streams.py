"""Chance has addresses: every random number is a function of where it is used, never of what ran before it.

start state of a group       stream("start", task)
later luck of one member     stream("luck", task, member, attempt)
a sampled token              uniforms(key.address, how many tokens the episode has sampled)
"""

import hashlib
import json
import random
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def address(*parts: Any) -> int:
    """A 63-bit number for these parts: equal in every process and on every machine (`hash(str)` is not)."""
    text = _ENCODER.encode(parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def random_stream(*parts: Any) -> random.Random:
    """A random stream of its own for these parts."""
    return random.Random(address(*parts))
