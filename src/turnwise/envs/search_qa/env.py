"""search_qa and deep_search: answer a question with a few searches in a corpus."""

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
from turnwise.envs.rubric_env import RubricEnv
from turnwise.envs.search_qa.knowledge_base import (
    MIN_PEOPLE_PASSAGES,
    SMALL_ENTITIES,
    KnowledgeBase,
    draw_question,
    make_small_knowledge_base,
    next_step,
    shared_knowledge_base,
)
from turnwise.envs.text_env import Outcome, check_range, lost, won
from turnwise.envs.tool_env import ToolEnv, ToolEnvRunner
from turnwise.rewards.rubric import RewardSettings
from turnwise.rewards.text_answers import exact_match, thresholded_f1
from turnwise.tools.call_formats import parse_calls
from turnwise.tools.search.types import Passage
from turnwise.tools.tool import Tool
from turnwise.tools.toolbox import EpisodeTools

MIN_F1 = 0.3
"""Lowest F1 that a partly right answer is paid for."""
MIN_PRECISION = 0.5
"""More than this share of an answer's words must be right."""
RESULT = re.compile(r"^\d+\. ([^:\n]+): (.*)$", re.MULTILINE)
"""Title and passage in a line of search results."""
DEFAULT_PASSAGES = {"people": 600, "small": 4}


class SearchEnvRunner(ToolEnvRunner):
    """Pass the search results on to the environment, which the tool cannot do: it is shared and caches its results."""

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        outputs = [message.content for message in result.messages if message.role == "tool"]
        calls = result.info.get("calls", [])
        texts = [text for text, call in zip(outputs, calls, strict=True) if not call["failed"]]
        num_new = self.tool_env.read_results(texts)
        return replace(result, reward=result.reward + self.tool_env.params.find_reward * num_new) if num_new else result


class SearchQA(ToolEnv):
    """Answer the question in a few words; search for what you need."""

    max_turns = 6
    runner = SearchEnvRunner
    split_start_states = True
    needs = MappingProxyType({"bm25s": "'turnwise[search]'"})

    class Params(ToolEnv.Params):
        style: Literal["hermes", "llama", "mistral", "answer"] = "hermes"
        """Format of calls: hermes (also Qwen), llama, mistral, answer (small models)."""
        world: Literal["people", "small"] = "people"
        """Corpus: people (large, one for all tasks), or small (a few entities drawn per task, for small models)."""
        hops: Annotated[int, Field(ge=1, le=3)] = 1
        """Passages that an answer needs, 1 to 3; each names the next."""
        passages: Annotated[int | None, Field(ge=4, le=5000)] = None
        """Passages in the corpus. Default: 600 for people, 4 for small."""
        top: Annotated[int, Field(ge=1, le=10)] = 3
        """Passages per search result, 1 to 10."""
        corpus: Annotated[int, Field(ge=0)] = 0
        """Seed of the corpus people; each seed is another corpus."""
        find_reward: float = 0.0
        """Process reward of each passage that the answer needs, when a search shows it for the first time."""

        @model_validator(mode="after")
        def _size_fits_corpus(self) -> Self:
            if self.world == "small" and self.size > len(SMALL_ENTITIES):
                raise ValueError(f"passages: the corpus small has at most {len(SMALL_ENTITIES)}")
            if self.world == "people" and self.size < MIN_PEOPLE_PASSAGES:
                raise ValueError(
                    f'passages: the corpus people has at least {MIN_PEOPLE_PASSAGES}; for fewer set world = "small"'
                )
            return self

        @property
        def size(self) -> int:
            return self.passages or DEFAULT_PASSAGES[self.world]

    params: Params

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        from turnwise.envs.search_qa.search_tool import EpisodeSearchTool, make_shared_search

        if params.world == "small":
            return [EpisodeSearchTool(params.top)]
        return [make_shared_search(params.size, params.corpus, params.top)]

    def tool_state(self) -> Sequence[Passage]:
        """The passages that `EpisodeSearchTool` searches."""
        return self.knowledge.passages

    def reset(self, rng: random.Random) -> str:
        hops = self.draw_hops(rng)
        if self.params.world == "small":
            self.knowledge: KnowledgeBase = make_small_knowledge_base(
                self.params.size, rng, chained=self.params.hops > 1
            )
        else:
            self.knowledge = shared_knowledge_base(self.params.size, self.params.corpus)
        self.question = draw_question(self.knowledge, hops, rng)
        self.passages_read: dict[str, str] = {}
        self.solver_queries: set[str] = set()
        return self.question.text

    def draw_hops(self, rng: random.Random) -> int:
        return self.params.hops

    def read_results(self, texts: Sequence[str]) -> int:
        """Remember the passages that the agent was shown; return how many needed ones are new."""
        known = set(self.passages_read)
        for text in texts:
            self.passages_read.update(RESULT.findall(text))
        return len((set(self.passages_read) - known) & set(self.question.entities))

    def step(self, action: str) -> Outcome:
        reward = grade_answer(action, self.question.answer)
        right = exact_match(action, self.question.answer)
        return won("Right.", reward) if right else lost(self.correction, reward)

    @property
    def correction(self) -> str:
        return f"No, {self.question.answer}."

    def solve(self) -> list[str] | None:
        """Search for what is missing, then answer from the passages; uses only what the agent was shown."""
        step = next_step(self.question, self.passages_read)
        if step is None or isinstance(step, str):
            return None if step is None else [step]
        entity, relation = step
        for query in (entity, f"{entity} {relation}"):
            if query not in self.solver_queries:
                self.solver_queries.add(query)
                return [self.call("search", query=query)]
        return None

    def explain(self, actions: Sequence[str]) -> str:
        calls = parse_calls(actions[0], self.params.style).calls
        return "I need to look that up." if calls else f"The passages say {actions[0]}."

    def random_answer(self, rng: random.Random) -> str:
        if rng.random() < 0.5:
            return self.call("search", query=rng.choice(self.knowledge.entities))
        return format_answer([rng.choice(self.knowledge.values(rng.choice(self.knowledge.relations).name))])

    def state_key(self) -> str:
        """The question and, for the corpus small, its facts: there the same question has other answers."""
        passages = [passage.full_text for passage in self.knowledge.passages] if self.params.world == "small" else []
        return "\n".join([self.question.text, *passages])

    def draw(self) -> Picture:
        return Picture(rows=((self.question.text,),))


def grade_answer(answer: str, expected: str) -> float:
    """1 for an exact match, else the F1 from 0.3 on; 0 below, and 0 for a list of guesses."""
    if exact_match(answer, expected):
        return 1.0
    return thresholded_f1(answer, expected, MIN_F1, MIN_PRECISION)


class DeepSearch(RubricEnv, SearchQA):
    """Answer the question in a few words; it takes several searches, each for what the last one told."""

    max_turns = 10

    class Params(SearchQA.Params):
        hops: Annotated[int, Field(ge=1, le=3)] = 3
        """Passages that an answer needs, at most, 1 to 3."""
        fewest_hops: Annotated[int, Field(ge=1, le=3)] = 2
        """Passages that an answer needs, at least, 1 to 3."""
        max_tool_calls: Annotated[int, Field(ge=1)] = 8
        """Tool calls per episode, at most."""
        reward: RewardSettings = (
            {"use": "exact_match", "weight": 0.5},
            {"use": "f1", "at_least": MIN_F1, "precision": MIN_PRECISION, "weight": 0.5},
        )
        """Rewards of an answer: names, FILE.py:function, and tables such as {use = "judge", rubric = ...}."""

        _check_hops = check_range("fewest_hops", "hops")

    params: Params

    def draw_hops(self, rng: random.Random) -> int:
        return rng.randint(self.params.fewest_hops, self.params.hops)

    @property
    def row(self) -> dict[str, Any]:
        """The task's data for reward functions."""
        return {"answer": self.question.answer, "hops": len(self.question.path)}

    async def judge(self, action: str, messages: Sequence[Message], tools: EpisodeTools) -> Outcome:
        outcome = await self.score(
            question=self.question.text, answer=action, row=self.row, messages=messages, tools=tools
        )
        return replace(outcome, text="Right." if outcome.success else self.correction)
