"""Bearers of episodes: random, compared in constant time, revoked at the end."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from turnwise.concurrency.bounded_cache import BoundedCache, count_values
from turnwise.gateway.chat import GatewayError, episode_over
from turnwise.network.http_headers import bearer_token

if TYPE_CHECKING:
    from turnwise.gateway.capture import GatewayEpisode

KEPT_REVOKED = 100_000
"""Revoked bearers to remember. Calls with older ones get 401 instead of 409."""


class Bearers:
    """Open episodes by bearer."""

    def __init__(self) -> None:
        self._open: dict[bytes, GatewayEpisode] = {}
        self._revoked = BoundedCache[bool](count_values, KEPT_REVOKED)

    def new(self) -> str:
        """Return a random bearer."""
        return f"tw-{secrets.token_urlsafe(32)}"

    def add(self, episode: "GatewayEpisode") -> None:
        self._open[_hash(episode.bearer)] = episode

    def find(self, bearer: str) -> "GatewayEpisode":
        """Return the episode of a bearer.

        It is looked up by its hash, so that the time of a lookup reveals nothing about other bearers.
        """
        name = _hash(bearer)
        episode = self._open.get(name)
        if episode is not None and hmac.compare_digest(episode.bearer.encode(), bearer.encode()):
            return episode
        if name in self._revoked:
            raise episode_over()
        raise GatewayError(401, "authentication", "The API key is wrong: use the one that the gateway gave this agent.")

    def revoke(self, episode: "GatewayEpisode") -> None:
        name = _hash(episode.bearer)
        if self._open.pop(name, None) is not None:
            self._revoked.put(name, True)

    def episodes(self) -> "list[GatewayEpisode]":
        return list(self._open.values())


def read_bearer(headers: Mapping[str, str]) -> str:
    """Return the API key of a request: OpenAI's clients send a bearer, Anthropic's x-api-key or a bearer."""
    return bearer_token(headers) or headers.get("x-api-key", "")


def _hash(bearer: str) -> bytes:
    return hashlib.sha256(bearer.encode("utf-8", "surrogatepass")).digest()
