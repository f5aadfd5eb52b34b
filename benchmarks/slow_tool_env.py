"""Environment of `slow_tools.py`: every turn waits for a tool, in lock-step also for those of other episodes."""

import asyncio
import math
import os
import random
import statistics

from turnwise.core.messages import Message
from turnwise.core.protocols import StepResult
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.text_env import Outcome, TextEnv, goes_on

TURNS = 5
MEDIAN_S, SPREAD = 0.5, math.log(8 / 0.5) / statistics.NormalDist().inv_cdf(0.99)
PARTIES = "SLOW_TOOLS_PARTIES"
"""Environment variable: number of episodes that wait for each other; 1: none. Unset (warm-up): tools are instant."""

LIMIT = "SLOW_TOOLS_LIMIT_S"
"""Environment variable: time limit of a tool; unset: none."""

_barriers: dict[asyncio.AbstractEventLoop, asyncio.Barrier] = {}


class SlowRunner(TextEnvRunner):
    async def step(self, action: Message) -> StepResult:
        if PARTIES in os.environ and self.env.split == "train":
            seconds = MEDIAN_S * math.exp(SPREAD * self.env.rng.gauss(0, 1))
            await asyncio.sleep(min(seconds, float(os.environ.get(LIMIT, "inf"))))
            if (parties := int(os.environ[PARTIES])) > 1:
                await _barriers.setdefault(asyncio.get_running_loop(), asyncio.Barrier(parties)).wait()
        return await super().step(action)


class Slow(TextEnv):
    """Say anything."""

    max_turns = TURNS
    action_names = ("Red", "Green", "Blue")
    runner = SlowRunner

    def reset(self, rng: random.Random) -> str:
        return "Go."

    def step(self, action: str) -> Outcome:
        return goes_on("Go on.", reward=float(action == "Red"))

    def random_action(self, rng: random.Random) -> str:
        return rng.choice(self.action_names)
