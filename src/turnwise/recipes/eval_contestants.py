"""Who is evaluated, on what: from what was typed to models with their settings, before anything is loaded."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from turnwise.config.load import Overrides, build, read_run
from turnwise.config.schema import Config
from turnwise.config.secrets import read_key, split_url
from turnwise.core.errors import UserError
from turnwise.core.protocols import Sampling
from turnwise.core.token_name import TokenName
from turnwise.engine.openai.client import ChatClient
from turnwise.engine.openai.endpoint import EXAMPLE_URL, KEY_VARIABLE, Endpoint, EndpointError
from turnwise.envs.registry import ENVIRONMENTS
from turnwise.envs.spec import EnvSpec
from turnwise.evaluation.episodes import Player
from turnwise.models.loading.catalogue import model_names
from turnwise.models.loading.hub import is_hub_name
from turnwise.recipes.build import build_policy_stack, load_policy
from turnwise.recipes.configure import recipe_names, settings_for
from turnwise.recipes.environment_mix import EnvironmentMix
from turnwise.recipes.sources import find_checkpoint, find_source
from turnwise.recipes.unused_settings import check_setting_is_used
from turnwise.rollout.chat_episode import ChatRunner
from turnwise.rollout.collect import PolicyRunner
from turnwise.rollout.limits import Limits
from turnwise.rollout.tasks import EnvMixEntry

SHARED = ("env", "rollout", "context", "eval")
"""What a model takes over from the run that it is compared with."""
UNREAD = ("rollout.groups", "rollout.group_size", "rollout.temperature", "eval.every")
UNREAD_BY_ENDPOINTS = ("model.", "context.", "system.", "rollout.in_flight", "rollout.prefix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Models behind an endpoint, as they were typed; the key is read from its variable where it is used."""

    url: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    label: str
    """How tables call it."""
    source: str
    config: Config
    url: str | None = None
    """Of the endpoint that serves it; None: it is run here."""

    @property
    def name(self) -> str:
        """What its files are called."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.label).strip(".-")[-100:] or "model"


def split_environment(words: Sequence[str], remote: Remote | None) -> tuple[list[str], str | None]:
    """SOURCE... [ENV]: the last word is the environment where it names one, or names nothing else that is known."""
    if not words or (len(words) == 1 and remote is None):
        return list(words), None
    *others, last = words
    if last in ENVIRONMENTS or last in recipe_names() or ".py" in last or last.endswith(".toml"):
        return others, last
    if not _is_source(last):
        settings_for(last)  # says what was mistyped
    return list(words), None


def _is_source(source: str) -> bool:
    known = source in model_names() or is_hub_name(source) or Path(source).expanduser().exists()
    return known or source.count("/") > 1 or find_run_of(source) is not None


def contestants(
    sources: Sequence[str], environment: str | None, remote: Remote | None, overrides: Overrides
) -> list[Contestant]:
    """All that are compared, in the order given, on one environment."""
    runs = {source: found for source in sources if (found := find_run_of(source)) is not None}
    shared = _shared(sources, environment, remote, runs)
    everyone = [_local_contestant(source, runs.get(source), environment, shared, overrides) for source in sources]
    if remote is not None:
        config = build({**shared, "context": {}}, overrides)  # an endpoint has the whole history
        everyone += [Contestant(label=model, source=model, config=config, url=remote.url) for model in remote.models]
    everyone = list(_with_unique_names(everyone))
    _check(everyone, overrides)
    return everyone


def find_run_of(source: str) -> tuple[Path, str | None] | None:
    """The run that `source` names, and its checkpoint where that is named too; None where it is no run."""
    try:
        return find_source(source)
    except UserError:
        return None


def _shared(
    sources: Sequence[str], environment: str | None, remote: Remote | None, runs: Mapping[str, tuple[Path, str | None]]
) -> dict[str, Any]:
    """The settings of those who bring none: of the environment that was named, or of the first run."""
    if environment is not None:
        return settings_for(environment)
    if runs:
        first = read_run(str(next(iter(runs.values()))[0]))
        return {section: first[section] for section in SHARED if section in first}
    if remote is not None:
        raise UserError(f"say on what: turnwise eval ENV --endpoint {remote.url} --model {remote.models[0]}")
    if not sources:
        raise UserError("say whose success: a run, a model, or --endpoint URL --model NAME")
    raise UserError(f'no run "{sources[0]}"; if it is a model, say on what: turnwise eval {sources[0]} ENV')


def _local_contestant(
    source: str,
    run: tuple[Path, str | None] | None,
    environment: str | None,
    shared: Mapping[str, Any],
    overrides: Overrides,
) -> Contestant:
    if run is None:
        return Contestant(label=source, source=source, config=build(shared, [("model.name", source), *overrides]))
    path, checkpoint = run
    settings = read_run(str(path))
    if environment is not None:
        settings["env"] = shared["env"]
    config = build(settings, [("model.name", str(find_checkpoint(path, checkpoint))), *overrides])
    label = path.resolve().name if checkpoint is None else f"{path.resolve().name}/{checkpoint}"
    return Contestant(label=label, source=source, config=config)


def _with_unique_names(everyone: Sequence[Contestant]) -> Iterator[Contestant]:
    """Two of one name, as runs in two folders, go by all that was typed of them."""
    names = [each.name for each in everyone]
    taken: set[str] = set()
    for each in everyone:
        if names.count(each.name) > 1:
            longer = f"{each.source} at {urlsplit(each.url).netloc}" if each.url else each.source
            each = Contestant(label=longer, source=each.source, config=each.config, url=each.url)
        if each.name in taken:
            raise UserError(f"{each.source} is given twice: leave one out (--tries plays each task more than once)")
        taken.add(each.name)
        yield each


def _check(everyone: Sequence[Contestant], overrides: Overrides) -> None:
    """What is compared must meet equal tasks, and what was typed must have an effect."""
    for key, mend in (("env", "ENV"), ("split", "--split"), ("episodes", "--episodes")):
        values = [each.config.env if key == "env" else getattr(each.config.eval, key) for each in everyone]
        if other := next((number for number, value in enumerate(values) if value != values[0]), 0):
            raise UserError(
                f"{everyone[0].label} and {everyone[other].label} bring different settings of "
                f"{'the environment' if key == 'env' else f'eval.{key}'}: say which with {mend}"
            )
    for key, _ in overrides:
        _check_effect(everyone, key.replace("-", "_"))


def _check_effect(everyone: Sequence[Contestant], key: str) -> None:
    if key in UNREAD:
        raise UserError(f"{key} has no effect on an evaluation: leave it out")
    if key.startswith(UNREAD_BY_ENDPOINTS) and all(each.url is not None for each in everyone):
        raise UserError(f"{key} has no effect on an endpoint: leave it out")
    complaints = []
    for each in everyone:
        try:
            check_setting_is_used(each.config, key)
        except UserError as error:
            complaints.append(error)
    if len(complaints) == len(everyone):
        raise complaints[0]


MAX_TIMEOUT_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """How endpoints are spoken to: it changes nothing of what is measured."""

    key_variable: str | None = None
    """The environment variable that holds the key; None: OPENAI_API_KEY, where it is set."""
    concurrency: int = 16
    timeout_s: float = 120.0
    retries: int = 6

    def endpoint(self, url: str, model: str) -> Endpoint:
        fix = "name the variable that holds it with --api-key-env"
        parts = split_url(url, option="--endpoint", example=EXAMPLE_URL, mend=fix)
        key = read_key(parts, self.key_variable, default=KEY_VARIABLE, option="--api-key-env")
        return Endpoint(url=url, model=model, key=key, timeout_s=self.timeout_s, retries=self.retries)

    def advice(self, error: EndpointError) -> str:
        """Return which option of the command line to change."""
        match error.reason:
            case "unreachable":
                return "check that it is running and that --endpoint is its address"
            case "unauthorized" if error.endpoint.key and self.key_variable:
                return f"replace the key in {self.key_variable}"
            case "unauthorized":
                return f"set {KEY_VARIABLE}, or name the variable that holds the key with --api-key-env"
            case "quota":
                return "raise it there"
            case "wait":
                return "try again after that"
            case "not_found":
                return f'check --model "{error.endpoint.model}", and that --endpoint ends in /v1'
            case "redirect":
                return "give the final address with --endpoint"
            case "rejected":
                return "change what it names, or choose another --model"


DEFAULT_ENDPOINT_OPTIONS = EndpointOptions()


def read_endpoint_options(
    *, key_variable: str | None, concurrency: int | None, timeout_s: float | None, retries: int | None
) -> EndpointOptions:
    """What was typed, checked; None: the default."""
    for name, value, least in (("concurrency", concurrency, 1), ("retries", retries, 0)):
        if value is not None and value < least:
            raise UserError(f"--{name} {value}: must be {least} or more")
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise UserError(f"--timeout {timeout_s:g}: must be a number of seconds above 0, and at most {MAX_TIMEOUT_S:g}")
    given = {"key_variable": key_variable, "concurrency": concurrency, "timeout_s": timeout_s, "retries": retries}
    return EndpointOptions(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPolicy:
    """A player, ready, with what reads its tokens and how many episodes it plays at once."""

    player: Player
    decode: Callable[[Sequence[int]], str]
    name_token: Callable[[int], TokenName]
    in_flight: int


def open_policy(
    contestant: Contestant,
    kind: EnvSpec,
    params: dict[str, Any],
    wire: EndpointOptions,
    show: Callable[[int, int], None],
) -> AbstractAsyncContextManager[EvaluationPolicy]:
    """Loads a model at once, which runs loops of its own. `show`: what its warm-up is told of."""
    if contestant.url is None:
        return nullcontext(_local_policy(contestant.config, kind, params, show))
    return _remote(contestant.config, kind, wire.endpoint(contestant.url, contestant.source), wire)


@asynccontextmanager
async def _remote(
    config: Config, kind: EnvSpec, endpoint: Endpoint, wire: EndpointOptions
) -> AsyncIterator[EvaluationPolicy]:
    limits = Limits(
        sampling=_sampling(config), max_tokens=config.rollout.max_tokens, timeout_s=config.rollout.timeout_s
    )
    async with ChatClient(endpoint) as chat:
        player = ChatRunner(chat=chat, make_env=kind.make, limits=limits)
        try:
            yield EvaluationPolicy(
                player=player, decode=lambda ids: "", name_token=_nameless, in_flight=wire.concurrency
            )
        except EndpointError as error:
            raise error.with_advice(wire.advice(error)) from None


def _local_policy(
    config: Config, kind: EnvSpec, params: dict[str, Any], show: Callable[[int, int], None]
) -> EvaluationPolicy:
    torch.set_num_threads(config.system.threads)
    world = EnvironmentMix(kinds={kind.name: kind}, worlds=(EnvMixEntry(env=kind.name, params=params),))
    loaded, _ = load_policy(config, world, show)
    players = build_policy_stack(config, world, loaded)
    player = PolicyRunner(collector=players.evaluator)
    reading = players.renderer
    return EvaluationPolicy(
        player=player, decode=reading.decode, name_token=reading.name_token, in_flight=config.rollout.in_flight
    )


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
