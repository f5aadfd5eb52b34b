"""deep_search: the same corpus, several passages deep, with a rubric for what an answer is worth."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from turnwise.core.messages import Message
from turnwise.envs.rubrics import Rewards, judged, judges_of_reward, rubric_of
from turnwise.envs.search_qa.env import LEAST_F1, PRECISION, SearchQA
from turnwise.envs.text_env import Outcome
from turnwise.tools.tool import NeedsServer
from turnwise.tools.toolbox import EpisodeTools


class DeepSearch(SearchQA):
    """Answer the question in a few words; it takes several searches, each for what the last one told."""

    max_turns = 10

    class Params(SearchQA.Params):
        hops: Annotated[int, Field(ge=1, le=3)] = 3
        """Passages that an answer takes, at most."""
        fewest_hops: Annotated[int, Field(ge=1, le=3)] = 2
        """Passages that an answer takes, at least."""
        max_tool_calls: Annotated[int, Field(ge=1)] = 8
        """Calls of an episode, at most."""
        reward: Rewards = (
            {"use": "exact_match", "weight": 0.5},
            {"use": "f1", "at_least": LEAST_F1, "precision": PRECISION, "weight": 0.5},
        )
        """What an answer is worth: names, FILE.py:function, and tables such as {use = "judge", rubric = ...}."""

        @model_validator(mode="after")
        def _ordered(self) -> Self:
            if self.fewest_hops > self.hops:
                raise ValueError("fewest_hops must be at most hops")
            return self

    params: Params

    @classmethod
    def check(cls, params: Any) -> None:
        super().check(params)
        rubric_of(params.reward)

    @classmethod
    def servers(cls, params: Any) -> list[NeedsServer]:
        return judges_of_reward(params.reward)

    def hop_count(self, rng: random.Random) -> int:
        return rng.randint(self.params.fewest_hops, self.params.hops)

    @property
    def row(self) -> dict[str, Any]:
        """What the parts of a rubric may know of the task."""
        return {"answer": self.question.answer, "hops": len(self.question.way)}

    async def judge(self, action: str, said: Sequence[Message], tools: EpisodeTools) -> Outcome:
        outcome = await judged(
            self.params.reward, question=self.question.text, answer=action, row=self.row, said=said, tools=tools
        )
        return replace(outcome, text="Right." if outcome.success else self.correction)
