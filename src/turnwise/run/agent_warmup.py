"""Warm-up of tiny for an agent: it learns the replies that the function `agent.random_reply` draws.

The agent plays its training tasks through a gateway whose model is that function, so the samples have the ids and
contexts of the run. As for environments, tiny learns the format of replies and not which ones are good.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from turnwise.config.schema import Config
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.protocols import Sampling
from turnwise.core.random_streams import random_stream
from turnwise.core.samples import Sample
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Trajectory
from turnwise.data.samples import build_samples
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.agent.settings import AgentSettings, StartedAgent
from turnwise.models.loading.load import LoadedModel
from turnwise.render.renderer import Renderer
from turnwise.rewards.functions import accepts_arguments
from turnwise.rollout.episode import Limits
from turnwise.run.agents import build_agent_collector, build_gateway
from turnwise.run.environment_mix import EnvironmentMix, build_task_source
from turnwise.training.warmup import EPISODES_PER_STEP, WARMUP_SEED, Progress, train_on
from turnwise.user_code.references import load_function
from turnwise.user_code.source_location import failure_boundary

MAX_EPISODES = 512
"""Episodes of random replies; a longer warm-up repeats them. An agent's frameworks take more time than tiny."""
AT_ONCE = 16
"""Episodes that run at the same time."""

RandomReply = Callable[[str, Random], str]
"""Reply to (all text so far, random stream), as text of the model's own format."""


def load_random_reply(settings: AgentSettings) -> RandomReply | None:
    """Load agent.random_reply; None without one."""
    if not isinstance(settings, StartedAgent) or settings.random_reply is None:
        return None
    function: RandomReply = load_function(settings.random_reply, "agent.random_reply")
    if not accepts_arguments(function, 2):
        raise UserError(
            f"agent.random_reply {settings.random_reply} must take two arguments: write function(text, rng)."
        )
    return function


def warm_up_agent(
    config: Config, environments: EnvironmentMix, loaded: LoadedModel, reply: RandomReply, show: Progress
) -> None:
    """Train the model, in place, on episodes of random replies."""
    steps = config.model.warmup_steps
    count = min(EPISODES_PER_STEP * steps, MAX_EPISODES)
    try:
        trajectories = asyncio.run(play_random_episodes(config, environments, loaded, reply, count))
    except (EnvironmentFailure, InfrastructureFailure) as failure:
        raise UserError(f"The agent failed during the warm-up of {loaded.name}: {failure}") from failure

    def draw(step: int) -> list[Sample]:
        first = step * EPISODES_PER_STEP
        return build_samples([trajectories[number % count] for number in range(first, first + EPISODES_PER_STEP)])

    train_on(loaded, draw, steps, lambda done: show(done, steps))


async def play_random_episodes(
    config: Config, environments: EnvironmentMix, loaded: LoadedModel, reply: RandomReply, count: int
) -> Sequence[Trajectory]:
    """Play `count` episodes on the training tasks, each with other replies."""
    renderer = Renderer(loaded.tokenizer, loaded.stop_ids, config.rollout.prefix, loaded.images)
    limits = Limits(
        sampling=Sampling(temperature=1.0, max_tokens=config.rollout.max_new_tokens),
        max_tokens=config.rollout.max_tokens,
        timeout_s=config.rollout.timeout_s,
    )

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        with failure_boundary("agent.random_reply"):
            text = reply(renderer.decode(ids), random_stream("random reply", key.address, len(ids)))
            return renderer.answer(text)

    tasks = build_task_source(config, environments).first_tasks("train", count)
    keys = [
        EpisodeKey(run_seed=WARMUP_SEED, round=0, task=tasks[number % len(tasks)], member=number)
        for number in range(count)
    ]
    running = asyncio.Semaphore(AT_ONCE)
    gateway = build_gateway(config.rollout, ScriptedEngine(script, sorted(loaded.stop_ids)), renderer, limits, None)

    async def play(key: EpisodeKey) -> Trajectory:
        async with running:
            (trajectory,) = await collector.episodes([key])
        return trajectory

    async with gateway:
        collector = build_agent_collector(config.agent, config.reward, config.rollout, gateway, limits, WARMUP_SEED)
        return await asyncio.gather(*map(play, keys))
