"""Environments whose answers are judged by a rubric that the recipe gives."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from turnwise.core.messages import Message
from turnwise.envs.registry import load_function
from turnwise.envs.text_env import Outcome
from turnwise.rewards.rubric import Rubric, Submission
from turnwise.tools.tool import NeedsServer
from turnwise.tools.toolbox import EpisodeTools

Rewards = str | tuple[str | dict[str, Any], ...]
"""As a recipe gives them: FILE.py:function, a name, or a list of names and tables with `use`."""


def rubric_of(reward: Rewards) -> Rubric:
    """Shared by all episodes, with what its judges remember and may spend."""
    return _made(json.dumps(reward))


@lru_cache(maxsize=32)
def _made(reward: str) -> Rubric:
    from turnwise.rewards.factory import build_rubric

    return build_rubric(json.loads(reward), lambda given: load_function(given, "env.params.reward"))


def judges_of_reward(reward: Rewards) -> list[NeedsServer]:
    """Who must answer before anything can be scored."""
    from turnwise.rewards.factory import judges_of

    return [*judges_of(rubric_of(reward))]


async def judged(
    reward: Rewards,
    *,
    question: str,
    answer: str,
    row: dict[str, Any],
    said: Sequence[Message],
    tools: EpisodeTools,
    success_at: float = 1.0,
) -> Outcome:
    """An answer ends the episode; the first part of the rubric decides whether well."""
    rubric = rubric_of(reward)
    values = await rubric.score(
        Submission(question=question, answer=answer, row=row, messages=tuple(said), run_tool=tools.run)
    )
    success = next(iter(values.values())) >= success_at
    return Outcome(text="", reward=rubric.total(values), over=True, success=success, parts=values)
