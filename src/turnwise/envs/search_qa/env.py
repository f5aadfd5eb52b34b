"""Runs the episodes of search environments: they hear what their agents are shown."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from turnwise.core.messages import Message, Picture
from turnwise.core.protocols import StepResult
from turnwise.envs.answers import format_answer
from turnwise.envs.rubrics import Rewards, judged, judges_of_reward, rubric_of
from turnwise.envs.search_qa.knowledge_base import (
    MIN_PEOPLE_PASSAGES,
    NAMES,
    KnowledgeBase,
    draw_question,
    make_small_knowledge_base,
    next_step,
    shared_knowledge_base,
)
from turnwise.envs.text_env import Outcome, lost, won
from turnwise.envs.tool_env import ToolEnv, ToolEnvRunner
from turnwise.rewards.text_answers import exact_match, thresholded_f1
from turnwise.tools.call_formats import parse_calls
from turnwise.tools.search.types import Passage
from turnwise.tools.tool import NeedsServer, Tool
from turnwise.tools.toolbox import EpisodeTools


class SearchEnvRunner(ToolEnvRunner):
    """The tool is shared and its answers are kept, so it cannot tell the environment what it was asked."""

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        told = [message.content for message in result.messages if message.role == "tool"]
        calls = result.info.get("calls", [])
        found = self.tool_env.hear([text for text, call in zip(told, calls, strict=True) if not call["failed"]])
        return replace(result, reward=result.reward + self.tool_env.params.find_reward * found) if found else result


LEAST_F1 = 0.3
"""From which on words that are partly right are worth something."""
PRECISION = 0.5
"""More of an answer's words than that must be right."""
HIT = re.compile(r"^\d+\. ([^:\n]+): (.*)$", re.MULTILINE)
"""A line of what the tool shows: title and passage."""
SIZES = {"people": 600, "small": 4}


class SearchQA(ToolEnv):
    """Answer the question in a few words; search for what you need."""

    max_turns = 6
    runner = SearchEnvRunner
    split_start_states = True
    needs = MappingProxyType({"bm25s": "'turnwise[search]'"})

    class Params(ToolEnv.Params):
        style: Literal["hermes", "llama", "mistral", "answer"] = "hermes"
        """How calls are written: hermes (also Qwen), llama, mistral, answer (small models)."""
        world: Literal["people", "small"] = "people"
        """people: one corpus for all tasks; small: a handful of things drawn anew for each task, for small models."""
        hops: Annotated[int, Field(ge=1, le=3)] = 1
        """Passages that an answer takes, each found by what the one before says."""
        passages: Annotated[int | None, Field(ge=4, le=5000)] = None
        """Of the corpus; none: 600, and 4 in the small world."""
        top: Annotated[int, Field(ge=1, le=10)] = 3
        """Passages that a search shows."""
        corpus: Annotated[int, Field(ge=0)] = 0
        """Which corpus of that size, where one is for all tasks."""
        find_reward: float = 0.0
        """Process reward of a search that shows a passage of the way for the first time."""

        @model_validator(mode="after")
        def _sized(self) -> Self:
            if self.world == "small" and self.size > len(NAMES):
                raise ValueError(f"passages: the small world has at most {len(NAMES)}")
            if self.world == "people" and self.size < MIN_PEOPLE_PASSAGES:
                raise ValueError(
                    f"passages: the world of people has at least {MIN_PEOPLE_PASSAGES}; smaller is world = small"
                )
            return self

        @property
        def size(self) -> int:
            return self.passages or SIZES[self.world]

    params: Params

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        from turnwise.envs.search_qa.search_tool import EpisodeSearchTool, shared_search

        if params.world == "small":
            return [EpisodeSearchTool(params.top)]
        return [shared_search(params.size, params.corpus, params.top)]

    def tool_state(self) -> Sequence[Passage]:
        """What a search of a world of its own looks at."""
        return self.world.passages

    def reset(self, rng: random.Random) -> str:
        hops = self.hop_count(rng)
        if self.params.world == "small":
            self.world: KnowledgeBase = make_small_knowledge_base(self.params.size, rng, chained=self.params.hops > 1)
        else:
            self.world = shared_knowledge_base(self.params.size, self.params.corpus)
        self.question = draw_question(self.world, hops, rng)
        self.heard: dict[str, str] = {}
        self.asked: set[str] = set()
        return self.question.text

    def hop_count(self, rng: random.Random) -> int:
        return self.params.hops

    def hear(self, texts: Sequence[str]) -> int:
        """Keeps what the agent was shown; how many passages of the way it had not seen before."""
        known = set(self.heard)
        for text in texts:
            self.heard.update(HIT.findall(text))
        return len((set(self.heard) - known) & set(self.question.things))

    def step(self, action: str) -> Outcome:
        reward = grade_answer(action, self.question.answer)
        return won("Right.", reward) if self.is_right(action) else lost(self.correction, reward)

    def is_right(self, answer: str) -> bool:
        return bool(exact_match(answer, self.question.answer))

    @property
    def correction(self) -> str:
        return f"No, {self.question.answer}."

    def solve(self) -> list[str] | None:
        """Looks up what is missing, then answers by what the passages said; it knows nothing that it was not shown."""
        step = next_step(self.question, self.heard)
        if step is None or isinstance(step, str):
            return None if step is None else [step]
        thing, relation = step
        for query in (thing, f"{thing} {relation}"):
            if query not in self.asked:
                self.asked.add(query)
                return [self.call("search", query=query)]
        return None

    def explain(self, actions: Sequence[str]) -> str:
        calls = parse_calls(actions[0], self.params.style).calls
        return "I need to look that up." if calls else f"The passages say {actions[0]}."

    def random_answer(self, rng: random.Random) -> str:
        if rng.random() < 0.5:
            return self.call("search", query=rng.choice(self.world.names))
        return format_answer([rng.choice(self.world.values(rng.choice(self.world.relations).name))])

    def state_key(self) -> str:
        """In the small world the facts belong to it: there the same question has other answers."""
        told = [passage.full_text for passage in self.world.passages] if self.params.world == "small" else []
        return "\n".join([self.question.text, *told])

    def draw(self) -> Picture:
        return Picture(rows=((self.question.text,),))


def grade_answer(answer: str, wanted: str) -> float:
    """1 for the answer; from F1 0.3 on, that; below it nothing, and nothing for a list of guesses."""
    if exact_match(answer, wanted):
        return 1.0
    return thresholded_f1(answer, wanted, LEAST_F1, PRECISION)


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
