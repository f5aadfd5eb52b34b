"""What is asked before a run starts: its settings, what they name, and the servers of its tools and judges."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config.schema import Config
from turnwise.envs.kind import EnvKind
from turnwise.envs.text_env import settings_of
from turnwise.envs.tool_env import ToolEnv
from turnwise.recipes.checks import check
from turnwise.recipes.sources import use_own_adapter
from turnwise.recipes.worlds import Worlds, worlds_of
from turnwise.rewards.judge.benches import benches
from turnwise.tools.readiness import NeedsServer

SILENCE_S = 3.0
"""Then it is said what is waited for: the first start of a server may be a download."""

log = logging.getLogger(__name__)


def check_run(
    config: Config, kind: EnvKind | None = None, given: Iterable[str] = (), *, resume: bool = False
) -> Worlds:
    """The worlds of a run that can start. `kind`, `given`: as `worlds_of` and `check` take them."""
    if resume and config.record.name is not None:
        config = use_own_adapter(config, Path(config.record.folder) / config.record.name)
    worlds = worlds_of(config, kind)
    for each in worlds.kinds.values():
        check(config, each, given)
    check_servers(worlds.with_params, judges=benches())
    return worlds


def check_servers(worlds: Iterable[tuple[EnvKind, Mapping[str, Any]]], judges: Sequence[NeedsServer] = ()) -> None:
    """Asks each server once, all at the same time; whoever uses none waits for nothing."""
    needed = [*judges]
    for kind, params in worlds:
        if issubclass(kind.cls, ToolEnv):
            needed += kind.cls.servers(settings_of(kind.cls).model_validate(dict(params)))
    if needed:
        asyncio.run(_ask(needed))


async def _ask(needed: Sequence[NeedsServer]) -> None:
    """waits for: every server's answer. unblocked by: they, their time-outs, the first that is not there."""
    asked = [asyncio.ensure_future(each.check_server()) for each in needed]
    _, late = await asyncio.wait(asked, timeout=SILENCE_S, return_when=asyncio.FIRST_EXCEPTION)
    if late and not any(each.done() and each.exception() for each in asked):
        log.info("waiting until the servers of the tools and judges are there")
    await asyncio.gather(*asked)
