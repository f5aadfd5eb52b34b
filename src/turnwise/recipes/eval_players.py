"""Who plays for a contestant: a model that is loaded here, or an endpoint that is asked."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.protocols import Sampling
from turnwise.core.token_name import TokenName
from turnwise.engine.openai.client import ChatClient
from turnwise.engine.openai.endpoint import Endpoint, read_key
from turnwise.envs.kind import EnvKind
from turnwise.evaluation.episodes import Player
from turnwise.recipes.eval_contestants import Contestant
from turnwise.recipes.wiring import build_players, load_policy
from turnwise.recipes.worlds import Worlds
from turnwise.rollout.limits import Limits
from turnwise.rollout.players import ChatPlayer, PolicyPlayer
from turnwise.rollout.tasks import World

MAX_TIMEOUT_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How endpoints are spoken to: it changes nothing of what is measured."""

    key_variable: str | None = None
    """The environment variable that holds the key; None: OPENAI_API_KEY, where it is set."""
    concurrency: int = 16
    timeout_s: float = 120.0
    retries: int = 6

    def endpoint(self, url: str, model: str) -> Endpoint:
        key = read_key(url, self.key_variable)
        return Endpoint(
            url=url,
            model=model,
            key=key,
            key_from=self.key_variable or "",
            timeout_s=self.timeout_s,
            retries=self.retries,
        )


DEFAULT_WIRE = Wire()


def make_wire(
    *, key_variable: str | None, concurrency: int | None, timeout_s: float | None, retries: int | None
) -> Wire:
    """What was typed, checked; None: the default."""
    for name, value, least in (("concurrency", concurrency, 1), ("retries", retries, 0)):
        if value is not None and value < least:
            raise UserError(f"--{name} {value}: must be {least} or more")
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise UserError(f"--timeout {timeout_s:g}: must be a number of seconds above 0, and at most {MAX_TIMEOUT_S:g}")
    given = {"key_variable": key_variable, "concurrency": concurrency, "timeout_s": timeout_s, "retries": retries}
    return Wire(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A player, ready, with what reads its tokens and how many episodes it plays at once."""

    player: Player
    decode: Callable[[Sequence[int]], str]
    name_token: Callable[[int], TokenName]
    in_flight: int


def take_seat(
    contestant: Contestant, kind: EnvKind, params: dict[str, Any], wire: Wire, show: Callable[[int, int], None]
) -> AbstractAsyncContextManager[Seat]:
    """Loads a model at once, which runs loops of its own. `show`: what its warm-up is told of."""
    if contestant.url is None:
        return nullcontext(_local(contestant.config, kind, params, show))
    return _remote(contestant.config, kind, wire.endpoint(contestant.url, contestant.source), wire.concurrency)


@asynccontextmanager
async def _remote(config: Config, kind: EnvKind, endpoint: Endpoint, concurrency: int) -> AsyncIterator[Seat]:
    limits = Limits(
        sampling=_sampling(config), max_tokens=config.rollout.max_tokens, timeout_s=config.rollout.timeout_s
    )
    async with ChatClient(endpoint) as chat:
        player = ChatPlayer(chat=chat, make_env=kind.make, limits=limits)
        yield Seat(player=player, decode=lambda ids: "", name_token=_nameless, in_flight=concurrency)


def _local(config: Config, kind: EnvKind, params: dict[str, Any], show: Callable[[int, int], None]) -> Seat:
    torch.set_num_threads(config.system.threads)
    world = Worlds(kinds={kind.name: kind}, worlds=(World(env=kind.name, params=params),))
    loaded, _ = load_policy(config, world, show)
    players = build_players(config, world, loaded)
    player = PolicyPlayer(collector=players.evaluator)
    reading = players.renderer
    return Seat(player=player, decode=reading.decode, name_token=reading.name_token, in_flight=config.rollout.in_flight)


def _nameless(token_id: int) -> TokenName:
    """An endpoint's messages have no token ids."""
    return TokenName(id=token_id, text="", special=False)


def _sampling(config: Config) -> Sampling:
    return Sampling(
        max_tokens=config.rollout.max_new_tokens,
        temperature=config.eval.temperature,
        top_p=config.eval.top_p,
        top_k=config.eval.top_k,
        stop=config.rollout.stop,
    )
