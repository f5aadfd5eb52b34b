"""`turnwise serve`: serve a model or a run to agents through the gateway, and record their calls or train on them."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from turnwise.config.load import Overrides, build, read_run
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.protocols import Sampling
from turnwise.core.random_streams import address
from turnwise.core.task import EpisodeKey, Task
from turnwise.gateway.admin import AdminSettings
from turnwise.gateway.agents import Access
from turnwise.gateway.http_server import wait_for_stop
from turnwise.gateway.server import Gateway
from turnwise.gateway.training_routes import TrainingRoutes
from turnwise.record.images import IMAGES_FOLDER
from turnwise.report.terminal import make_console
from turnwise.rollout.episode import Limits
from turnwise.run.build import build_engine, build_renderer
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.find_model import find_checkpoint
from turnwise.run.find_source import find_run_or_none
from turnwise.run.load_policy import load_policy
from turnwise.run.trainer_backend import LocalBackend, configure_trainer, open_local
from turnwise.text.command_line import spell_command

SECTIONS = ("model", "rollout", "system")
"""Sections that the command reads."""
CALLS = Path("runs/serve/calls.sqlite")
"""Default file of the recorded calls."""
KEPT_BRANCHES = 1000
"""Latest conversations of the served API key that can be continued without reading the prompt again."""


def serve(
    overrides: Overrides,
    *,
    host: str,
    port: int,
    api_key: str | None,
    admin_token: str | None,
    out: Path,
    write: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C. With `api_key`, calls that an earlier process recorded for it are continued."""
    config = configure_serving(overrides)
    loaded, _ = load_policy(config, EnvironmentMix(specs={}, entries=()), lambda done, total: None)
    renderer = build_renderer(config.rollout, loaded)
    out.parent.mkdir(parents=True, exist_ok=True)
    if loaded.images is not None:  # for the calls that a restarted server continues, and to bound the memory
        loaded.images.store.keep_in(out.parent / IMAGES_FOLDER)
    gateway = Gateway(
        build_engine(config.engine, config.rollout, loaded.model, renderer),
        renderer,
        _limits(config),
        out,
        max_sessions=config.rollout.in_flight,
        model=config.model.name,
        host=host,
        port=port,
        admin=None if admin_token is None else AdminSettings(token=admin_token, make_key=_episode_key),
    )
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
        asyncio.run(_serve(gateway, api_key, out, write))


async def _serve(gateway: Gateway, api_key: str | None, out: Path, write: Callable[[str], None]) -> None:
    """Serve until the task is cancelled."""
    bearer = api_key or f"tw-{secrets.token_urlsafe(24)}"
    key = _episode_key(0, address("served", bearer))
    async with gateway:
        await gateway.open_episode(key, bearer=bearer, restore=True, keep=KEPT_BRANCHES)
        for name, value in Access(url=gateway.url, key=bearer).variables.items():
            write(f"export {name}={value}")
        write(f"serving {gateway.model} and recording calls in {out}  (Ctrl-C to stop)")
        await wait_for_stop()


def serve_training(
    overrides: Overrides,
    *,
    resume: str | None,
    host: str,
    port: int,
    admin_token: str | None,
    write: Callable[[str], None],
) -> None:
    """Train on the episodes of a `tw.Trainer(url=...)` elsewhere until Ctrl-C."""
    config = configure_trainer(overrides, resume)
    if config.agent.reward is not None:
        raise UserError(
            "agent.reward reads the agent's return value and folder, which are on the machine of the remote agent: "
            "return the reward from the agent, or score the recorded calls with reward.functions."
        )
    token = admin_token or f"tw-{secrets.token_urlsafe(24)}"
    keys = [] if resume is not None else [key for key, _ in overrides]

    served: list[Path] = []

    async def run() -> None:
        found: list[TrainingRoutes] = []

        def prepare(gateway: Gateway, backend: LocalBackend) -> None:
            found.append(TrainingRoutes(backend, token))
            gateway.listen_at(host, port, found[0].routes())

        async with open_local(config, keys, make_console(), resume=resume is not None, prepare=prepare) as backend:
            served.append(backend.path)
            write(f'tw.Trainer(url="{backend.access.url}", api_key="{token}")')
            write(f"training {backend.path} after step {backend.steps_done}  (Ctrl-C to stop)")
            await _wait_for_stop_or(found[0].diverged)

    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
        asyncio.run(run())
    if served and served[0].exists():  # a run without a step is removed
        write(f"stopped; resume with: {spell_command('serve', '--train', '--resume', served[0])}")


async def _wait_for_stop_or(failure: "asyncio.Future[None]") -> None:
    stop = asyncio.create_task(wait_for_stop())
    await asyncio.wait({stop, failure}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if failure.done():
        failure.result()


def configure_serving(overrides: Overrides) -> Config:
    """Return the configuration. If model.name is a run, its settings apply and its last checkpoint is served."""
    names = [str(value) for key, value in overrides if key == "model.name"]
    run = find_run_or_none(names[0]) if names else None
    if run is None:
        return build({}, overrides)
    path, checkpoint = run
    saved = read_run(str(path))
    settings = {section: saved[section] for section in SECTIONS if section in saved}
    others = [(key, value) for key, value in overrides if key != "model.name"]
    return build(settings, [("model.name", str(find_checkpoint(path, checkpoint))), *others])


def _limits(config: Config) -> Limits:
    rollout = config.rollout
    sampling = Sampling(temperature=rollout.temperature, max_tokens=rollout.max_new_tokens, stop=rollout.stop)
    return Limits(sampling=sampling, max_tokens=rollout.max_tokens, timeout_s=rollout.timeout_s)


def _episode_key(number: int, seed: int | None = None) -> EpisodeKey:
    """Return the key of an episode. Those that an admin opens have random numbers of their own in every process."""
    seed = secrets.randbits(63) if seed is None else seed
    return EpisodeKey(run_seed=0, round=0, task=Task(env="serve", seed=seed), member=number)
