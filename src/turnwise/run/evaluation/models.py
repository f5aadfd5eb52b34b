"""Models of an evaluation with their settings, and the policies that run their episodes."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from turnwise.config.load import Overrides, build, read_run
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.trajectory import TokenName
from turnwise.engine.openai.client import ChatClient
from turnwise.engine.openai.endpoint import EXAMPLE_URL, KEY_VARIABLE, Endpoint, EndpointError
from turnwise.envs.spec import EnvSpec
from turnwise.evaluation.episodes import EpisodeRunner
from turnwise.network.secrets import read_key, split_url
from turnwise.pictures.image_store import ImageStore
from turnwise.rollout.chat_episode import ChatRunner
from turnwise.rollout.collect import PolicyRunner
from turnwise.rollout.episode import Limits
from turnwise.rollout.tasks import EnvMixEntry
from turnwise.run.build import PolicyStack, build_policy_stack, evaluation_sampling
from turnwise.run.check_settings import check_is_used, missing_capabilities
from turnwise.run.environment_mix import EnvironmentMix, parse_list_params
from turnwise.run.evaluation.arguments import RemoteModels, shared_settings
from turnwise.run.find_model import find_checkpoint
from turnwise.run.find_source import find_run_or_none
from turnwise.run.load_policy import load_policy

UNUSED = ("rollout.groups", "rollout.group_size", "rollout.temperature", "eval.every")
UNUSED_BY_ENDPOINTS = ("model.", "context.", "system.", "rollout.in_flight", "rollout.prefix")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedModel:
    """A model to evaluate: a run's checkpoint, a local model, or a model behind an endpoint."""

    label: str
    """Name in tables."""
    source: str
    config: Config
    url: str | None = None
    """URL of the endpoint that serves it. None runs the model on this machine."""

    @property
    def name(self) -> str:
        """Name of its files."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.label).strip(".-")[-100:] or "model"


def build_models(
    sources: Sequence[str], environment: str | None, remote: RemoteModels | None, overrides: Overrides
) -> list[EvaluatedModel]:
    """Build the models in the order of the command line, all with the same environment."""
    runs = {source: run for source in sources if (run := find_run_or_none(source)) is not None}
    shared = shared_settings(sources, environment, remote, runs, overrides)
    overrides = parse_list_params(shared, overrides)
    models = [_local_model(source, runs.get(source), environment, shared, overrides) for source in sources]
    if remote is not None:
        config = build({**shared, "context": {}}, overrides)  # an endpoint always gets the full history
        models += [EvaluatedModel(label=model, source=model, config=config, url=remote.url) for model in remote.models]
    models = list(_with_unique_names(models))
    _check_equal_tasks(models)
    for key, _ in overrides:
        _check_used(models, key.replace("-", "_"))
    return models


def _local_model(
    source: str,
    run: tuple[Path, str | None] | None,
    environment: str | None,
    shared: Mapping[str, Any],
    overrides: Overrides,
) -> EvaluatedModel:
    if run is None:
        return EvaluatedModel(label=source, source=source, config=build(shared, [("model.name", source), *overrides]))
    path, checkpoint = run
    settings = read_run(str(path))
    settings.pop("engine", None)  # the model is loaded here, and the servers of the training run may be gone
    if environment is not None:
        settings |= {section: shared.get(section, {}) for section in ("env", "agent")}
    config = build(settings, [("model.name", str(find_checkpoint(path, checkpoint))), *overrides])
    label = path.resolve().name if checkpoint is None else f"{path.resolve().name}/{checkpoint}"
    return EvaluatedModel(label=label, source=source, config=config)


def _with_unique_names(models: Sequence[EvaluatedModel]) -> Iterator[EvaluatedModel]:
    """Label models of equal names, such as runs in two folders, by their whole source."""
    names = [model.name for model in models]
    taken: set[str] = set()
    for model in models:
        if names.count(model.name) > 1:
            longer = f"{model.source} at {urlsplit(model.url).netloc}" if model.url else model.source
            model = EvaluatedModel(label=longer, source=model.source, config=model.config, url=model.url)
        if model.name in taken:
            raise UserError(f"{model.source} is given twice. Remove one; tries sets the episodes per task.")
        taken.add(model.name)
        yield model


def _check_equal_tasks(models: Sequence[EvaluatedModel]) -> None:
    for key in ("env", "split", "episodes"):
        values = [model.config.env if key == "env" else getattr(model.config.eval, key) for model in models]
        if other := next((number for number, value in enumerate(values) if value != values[0]), 0):
            raise UserError(
                f"{models[0].label} and {models[other].label} have different settings of "
                f"{'the environment. Name one after them' if key == 'env' else f'eval.{key}. Set it'}."
            )


def _check_used(models: Sequence[EvaluatedModel], key: str) -> None:
    """Raise UserError if no model uses this setting."""
    if key in UNUSED:
        raise UserError(f"{key} has no effect on an evaluation. Remove it.")
    if key.startswith(UNUSED_BY_ENDPOINTS) and all(model.url is not None for model in models):
        raise UserError(f"{key} has no effect on an endpoint. Remove it.")
    errors = []
    for model in models:
        try:
            check_is_used(model.config, key, missing_capabilities(model.config))
        except UserError as error:
            errors.append(error)
    if len(errors) == len(models):
        raise errors[0]


MAX_TIMEOUT_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """Options of the connection to endpoints. They do not affect results."""

    key_variable: str | None = None
    """Environment variable that holds the API key. None uses OPENAI_API_KEY, if set."""
    concurrency: int = 16
    timeout_s: float = 120.0
    retries: int = 6

    def endpoint(self, url: str, model: str) -> Endpoint:
        fix = "name the variable that holds it (api_key_env)"
        parts = split_url(url, option="endpoint", example=EXAMPLE_URL, fix=fix)
        key = read_key(parts, self.key_variable, default=KEY_VARIABLE, option="api_key_env")
        return Endpoint(url=url, model=model, key=key, timeout_s=self.timeout_s, retries=self.retries)

    def advice(self, error: EndpointError) -> str:
        """Return which command-line option to change."""
        match error.reason:
            case "unreachable":
                return "check that it is running and that the endpoint is its address"
            case "unauthorized" if error.endpoint.key and self.key_variable:
                return f"replace the key in {self.key_variable}"
            case "unauthorized":
                return f"set {KEY_VARIABLE}, or name the variable that holds the key (api_key_env)"
            case "quota":
                return "raise it there"
            case "wait":
                return "try again after that"
            case "not_found":
                return f'check the name "{error.endpoint.model}", and that the endpoint ends in /v1'
            case "redirect":
                return "give the final address as endpoint"
            case "rejected":
                return "fix the parameter that the error names, or choose another model"


DEFAULT_ENDPOINT_OPTIONS = EndpointOptions()


def read_endpoint_options(
    *, key_variable: str | None, concurrency: int | None, timeout_s: float | None, retries: int | None
) -> EndpointOptions:
    """Build the options from the command line. None means the default."""
    for name, value, least in (("concurrency", concurrency, 1), ("retries", retries, 0)):
        if value is not None and value < least:
            raise UserError(f"{name} {value}: must be {least} or more.")
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise UserError(f"timeout {timeout_s:g}: must be above 0 and at most {MAX_TIMEOUT_S:g} seconds.")
    options = {"key_variable": key_variable, "concurrency": concurrency, "timeout_s": timeout_s, "retries": retries}
    return EndpointOptions(**{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPolicy:
    """Policy that runs episodes of an evaluation, with what names its tokens."""

    runner: EpisodeRunner
    decode: Callable[[Sequence[int]], str]
    name_token: Callable[[int], TokenName]
    in_flight: int
    """Episodes at the same time."""


def open_policy(
    model: EvaluatedModel,
    spec: EnvSpec,
    params: dict[str, Any],
    endpoint_options: EndpointOptions,
    show_warmup: Callable[[int, int], None],
    images: ImageStore,
) -> AbstractAsyncContextManager[EvaluationPolicy]:
    """Open the policy of a model. This call loads a local model, because loading runs event loops of its own.

    `show_warmup` receives the finished and total steps of tiny's warm-up; `images` keeps those of the episodes.
    """
    if model.url is None:
        return _local_policy(model.config, spec, params, show_warmup, images)
    endpoint = endpoint_options.endpoint(model.url, model.source)
    return _remote_policy(model.config, spec, endpoint, endpoint_options, images)


async def check_endpoints(models: Sequence[EvaluatedModel], endpoint_options: EndpointOptions) -> None:
    """Send one short request to each model's endpoint. Raises UserError if its address, key or model is wrong."""
    for model in models:
        if model.url is None:
            continue
        async with ChatClient(endpoint_options.endpoint(model.url, model.source)) as chat:
            with _advising(endpoint_options):
                await chat.check(evaluation_sampling(model.config.rollout, model.config.eval))


@contextmanager
def _advising(endpoint_options: EndpointOptions) -> Iterator[None]:
    """Add which option of the command line to change to errors of the endpoint."""
    try:
        yield
    except EndpointError as error:
        raise error.with_advice(endpoint_options.advice(error)) from None


@asynccontextmanager
async def _remote_policy(
    config: Config, spec: EnvSpec, endpoint: Endpoint, endpoint_options: EndpointOptions, images: ImageStore
) -> AsyncIterator[EvaluationPolicy]:
    limits = Limits(
        sampling=evaluation_sampling(config.rollout, config.eval),
        max_tokens=config.rollout.max_tokens,
        timeout_s=config.rollout.timeout_s,
    )
    async with ChatClient(endpoint) as chat:
        runner = ChatRunner(chat=chat, make_env=spec.make, limits=limits, images=images)
        with _advising(endpoint_options):
            yield EvaluationPolicy(
                runner=runner, decode=lambda ids: "", name_token=_unnamed, in_flight=endpoint_options.concurrency
            )


def _local_policy(
    config: Config,
    spec: EnvSpec,
    params: dict[str, Any],
    show_warmup: Callable[[int, int], None],
    images: ImageStore,
) -> AbstractAsyncContextManager[EvaluationPolicy]:
    torch.set_num_threads(config.system.threads)
    environments = EnvironmentMix(specs={spec.name: spec}, entries=(EnvMixEntry(env=spec.name, params=params),))
    loaded, _ = load_policy(config, environments, show_warmup)
    if loaded.images is not None:
        loaded.images.store = images
    stack = build_policy_stack(config, environments, loaded)
    policy = EvaluationPolicy(
        runner=PolicyRunner(collector=stack.evaluator),
        decode=stack.renderer.decode,
        name_token=stack.renderer.name_token,
        in_flight=config.rollout.in_flight,
    )
    return _while_open(stack, policy)


@asynccontextmanager
async def _while_open(stack: PolicyStack, policy: EvaluationPolicy) -> AsyncIterator[EvaluationPolicy]:
    async with stack.open():
        yield policy


def _unnamed(token_id: int) -> TokenName:
    """Return an empty name: messages of endpoints have no token ids."""
    return TokenName(id=token_id, text="", special=False)
