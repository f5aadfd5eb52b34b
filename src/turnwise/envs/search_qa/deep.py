"""deep_search: the same corpus, several passages deep, with a rubric for what an answer is worth."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from turnwise.core.messages import Message, ToolCall
from turnwise.envs.search_qa.env import SearchQA, graded
from turnwise.envs.text_env import Outcome
from turnwise.rewards.parts.matching import ExactMatch
from turnwise.rewards.rubric import Answered, Rubric
from turnwise.tools.box import ToolHands
from turnwise.tools.tool import ToolResult


async def f1_part(answered: Answered) -> float:
    """As search_qa grades: words that are partly right count from F1 0.3 on."""
    return graded(answered.answer, str(answered.row["answer"]))


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

        @model_validator(mode="after")
        def _ordered(self) -> Self:
            if self.fewest_hops > self.hops:
                raise ValueError("fewest_hops must be at most hops")
            return self

    params: Params

    @classmethod
    def make_rubric(cls, params: Any) -> Rubric:
        """What an answer is judged by; where a judge is wished for, it is one more part."""
        return Rubric(parts={"exact_match": ExactMatch(), "f1": f1_part}, weights={"exact_match": 0.5, "f1": 0.5})

    def hop_count(self, rng: random.Random) -> int:
        return rng.randint(self.params.fewest_hops, self.params.hops)

    @property
    def row(self) -> dict[str, Any]:
        """What the parts of a rubric may know of the task."""
        return {"answer": self.question.answer, "hops": len(self.question.way)}

    async def judge(self, action: str, said: Sequence[Message], hands: ToolHands) -> Outcome:
        async def run_tool(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            return await hands.call(ToolCall(name=name, arguments=json.dumps(dict(arguments))))

        rubric = self.make_rubric(self.params)
        values = await rubric.score(
            Answered(question=self.question.text, answer=action, row=self.row, messages=tuple(said), run_tool=run_tool)
        )
        right = self.is_right(action)
        return Outcome(
            text="Right." if right else self.correction,
            reward=rubric.total(values),
            over=True,
            success=right,
            parts=values,
        )
