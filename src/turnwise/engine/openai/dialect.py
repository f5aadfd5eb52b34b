"""Parameters that a model behind an endpoint takes, learnt from the requests that it refuses.

OpenAI's reasoning models refuse `max_tokens`, `stop` and every `temperature` but 1, and reasoning counts against the
token budget; other servers refuse `seed` or `top_k`. A refusal is a 400 or 422 that names the parameter:

    {"error": {"message": "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1)
     value is supported.", "type": "invalid_request_error", "param": "temperature", "code": "unsupported_value"}}
"""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from turnwise.text.json_objects import parse_object

OPTIONAL = ("temperature", "top_p", "top_k", "stop", "seed")
"""Parameters of a request that are left out once a model refuses them."""
BUDGET, NEW_BUDGET = "max_tokens", "max_completion_tokens"
REASONING_TOKENS = 8192
"""Tokens added to the budget of a model that used all of it for reasoning."""
REFUSAL = re.compile(
    r"unsupported|\bnot\s+(?:be\s+)?(?:support|permitted|allowed|accept|available|valid)|unrecogni[sz]ed|unknown"
    r"|unexpected|deprecated|forbidden|cannot both|only the default",
    re.IGNORECASE,
)
"""Distinguishes "takes no temperature" from "the temperature is too high", which the user has to fix."""
OUT_OF_TOKENS = b"max_tokens or model output limit was reached"
"""OpenAI's 400 for a model that used the whole budget for reasoning."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Dialect:
    model: str
    budget_name: str = BUDGET
    refused: set[str] = field(default_factory=set)
    """Optional parameters that are left out."""
    reasoning_tokens: int = 0
    """Tokens added to the budget of every request."""

    def adapt(self, request: Mapping[str, Any], body: bytes) -> bool:
        """Learn from a refused request; return True if the next one will differ from it."""
        text = body[:20_000].decode(errors="replace")
        if BUDGET in request and NEW_BUDGET in text:
            self.budget_name = NEW_BUDGET
            return True
        name = refused_parameter(request, text)
        if name is None:
            return False
        if name not in self.refused:
            self.refused.add(name)
            value = json.dumps(request[name])
            log.info("%s refuses %s %s: requests are sent without it%s", self.model, name, value, EFFECTS[name])
        return True

    def raise_budget(self) -> None:
        if not self.reasoning_tokens:
            self.reasoning_tokens = REASONING_TOKENS
            log.info(
                "%s used its whole token budget for reasoning: %d more are allowed per request",
                self.model,
                REASONING_TOKENS,
            )


EFFECTS = {
    "temperature": ", so it samples at its own temperature",
    "top_p": "",
    "top_k": "",
    "stop": ", and replies are cut here instead",
    "seed": ", so repeated requests give different answers",
}


@cache
def dialect_for(chat_url: str, model: str) -> Dialect:
    """Return what this process knows about a model. All clients of the model share it."""
    return Dialect(model)


def refused_parameter(request: Mapping[str, Any], text: str) -> str | None:
    """Return the optional parameter of the request that an error message refuses, or None.

    Servers name it in `param`, or only in the message, and some fill `param` with something else.
    """
    if not REFUSAL.search(text):
        return None
    optional = [name for name in OPTIONAL if name in request]
    if (named := _param(text)) in optional:
        return named
    positions = {name: match.start() for name in optional if (match := re.search(rf"\b{name}\b", text))}
    return min(positions, key=positions.__getitem__) if positions else None


def _param(text: str) -> str | None:
    error = (parse_object(text) or {}).get("error")
    named = error.get("param") if isinstance(error, dict) else None
    return named if isinstance(named, str) else None
