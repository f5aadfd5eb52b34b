"""`turnwise serve`: serve a model or a run to agents through the gateway, and record their calls."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from turnwise.config.load import Overrides, build, read_run
from turnwise.config.schema import Config
from turnwise.core.protocols import Sampling
from turnwise.core.random_streams import address
from turnwise.core.task import EpisodeKey, Task
from turnwise.gateway.admin import AdminSettings
from turnwise.gateway.server import Gateway
from turnwise.recipes.build import build_engine, build_renderer, load_policy
from turnwise.recipes.environment_mix import EnvironmentMix
from turnwise.recipes.eval_contestants import find_run_or_none
from turnwise.recipes.sources import find_checkpoint
from turnwise.rollout.episode import Limits

SECTIONS = ("model", "rollout", "system")
"""Sections that the command reads."""
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
    renderer = build_renderer(config, loaded)
    out.parent.mkdir(parents=True, exist_ok=True)
    gateway = Gateway(
        build_engine(config, loaded.model, renderer),
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
        for name, value in environment_variables(gateway.url, bearer).items():
            write(f"export {name}={value}")
        write(f"serving {gateway.model} and recording calls in {out}  (Ctrl-C to stop)")
        await wait_for_stop()


async def wait_for_stop() -> None:
    """Wait until the task is cancelled, by Ctrl-C or a signal."""
    await asyncio.Event().wait()


def environment_variables(url: str, bearer: str) -> dict[str, str]:
    """Return the variables by which the clients of OpenAI and Anthropic find the gateway."""
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": bearer,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": bearer,
    }


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
