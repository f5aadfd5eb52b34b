"""search_qa and deep_search: reproducible corpora, solved by searching, and graded answers."""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Split, Task
from turnwise.envs.registry import load_spec
from turnwise.envs.search_qa.env import grade_answer
from turnwise.envs.search_qa.knowledge_base import (
    RELATIONS,
    draw_question,
    make_small_knowledge_base,
    next_step,
    shared_knowledge_base,
)
from turnwise.envs.seeds import seed_for
from turnwise.envs.tool_env import ToolEnvRunner
from turnwise.models.loading.tiny import tiny_tokenizer

SMALL: dict[str, Any] = {"world": "small", "style": "answer", "top": 1}
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def make(env: str, index: int = 0, split: Split = "train", **params: Any) -> ToolEnvRunner:
    kind = load_spec(env)
    runner = kind.make(Task(env=env, seed=seed_for(split, index), split=split, params=kind.check_params(params)))
    assert isinstance(runner, ToolEnvRunner)
    return runner


async def play_solver(runner: ToolEnvRunner) -> list[StepResult]:
    """Play the solver's episode."""
    await runner.start()
    results: list[StepResult] = []
    while not results or not results[-1].over:
        actions = runner.env.solve()
        assert actions, f"the solver fails: {runner.tool_env.question.text}"
        results.append(await runner.step(assistant(runner.env.reply(actions))))
    await runner.close()
    return results


@pytest.mark.parametrize(
    ("env", "params"),
    [
        ("search_qa", {}),
        ("search_qa", {"hops": 3, "passages": 2000, "style": "llama"}),
        ("search_qa", {"hops": 2, "passages": 10, "style": "mistral", "top": 1}),
        ("search_qa", SMALL),
        ("search_qa", SMALL | {"hops": 3, "passages": 11}),
        ("deep_search", {}),
        ("deep_search", {"style": "answer"}),
    ],
)
def test_solver_needs_one_search_per_hop(env: str, params: dict[str, Any]) -> None:
    async def together() -> None:
        for index in range(25):
            runner = make(env, index, **params)
            results = await play_solver(runner)
            hops = len(runner.tool_env.question.path)
            assert results[-1].success and results[-1].reward == 1.0
            assert len(results) <= hops + 1 and all(not result.invalid for result in results)
            assert all(result.info["calls"] == [{"name": "search", "failed": False}] for result in results[:-1])

    asyncio.run(together())


def test_solver_uses_only_passages_that_it_has_read() -> None:
    runner = make("search_qa", hops=2)
    asyncio.run(runner.start())
    env = runner.tool_env
    env.passages_read = {env.question.entities[0]: "a passage without the fact"}
    assert env.solve() is None
    question, value = env.question, "Somebody Else"
    first, second = question.path
    env.passages_read = {
        question.entities[0]: first.state(question.entities[0], value),
        value: second.state(value, "another answer"),
    }
    assert env.solve() == ["another answer"], "not the right answer, which no passage states"


def test_splits_share_no_question() -> None:
    async def opening(split: Split, index: int, **params: Any) -> str:
        runner = make("search_qa", index, split, **params)
        await runner.start()
        key = runner.env.state_key()
        await runner.close()
        assert key is not None
        return key

    async def keys(split: Split, **params: Any) -> set[str]:
        return {await opening(split, index, **params) for index in range(40)}

    for params in ({}, {"hops": 2}, SMALL):
        train, validation, test = (asyncio.run(keys(split, **params)) for split in SPLITS)
        assert len(train) > 30 and not (train & validation or train & test or validation & test)


def test_knowledge_base_has_one_answer_per_question() -> None:
    knowledge = shared_knowledge_base(300, 0)
    assert len(knowledge.passages) == len(knowledge.entity_types) == 300
    for passage in knowledge.passages:
        relations = [relation for relation in RELATIONS if relation.subject == knowledge.entity_types[passage.title]]
        stated = {relation.name: relation.extract(passage.title, passage.text) for relation in relations}
        assert stated and stated == {
            relation.name: knowledge.facts[passage.title, relation.name] for relation in relations
        }
    last = ("person", "book")
    stems = {name.split()[-1 if kind in last else 0] for name, kind in knowledge.entity_types.items()}
    assert len(stems) == 300, "every name has a unique word"
    assert shared_knowledge_base(300, 1).passages != knowledge.passages


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_question_needs_exactly_its_hops(hops: int) -> None:
    rng = random.Random(hops)
    small = [make_small_knowledge_base(4, rng, chained=True) for _ in range(5)]
    for knowledge in (shared_knowledge_base(100, 0), *small):
        texts = {passage.title: passage.text for passage in knowledge.passages}
        for _ in range(40):
            question = draw_question(knowledge, hops, rng)
            assert len(question.path) == len(set(question.entities)) == hops
            assert question.answer not in question.entities and question.text.endswith("?")
            assert next_step(question, texts) == question.answer
            for entity in question.entities:
                without = {name: text for name, text in texts.items() if name != entity}
                assert next_step(question, without) == (entity, question.path[question.entities.index(entity)].name)


SCRIPT = """
from turnwise.envs.search_qa.knowledge_base import shared_knowledge_base
import hashlib, sys
knowledge = shared_knowledge_base(200, 3)
print(hashlib.blake2b(repr((knowledge.passages, sorted(knowledge.facts.items()))).encode()).hexdigest())
"""


def test_corpus_is_the_same_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1 and len(found.pop()) > 100


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("Ada Brandolt", 1.0),
        ("the  ada BRANDOLT.", 1.0),
        ("Ada", 2 / 3),
        ("Ada Brandolt there", 2 * 2 / 5),
        ("Ada Brandolt Bo Kelt", 0.0),  # two guesses
        ("Ada or Bo", 0.0),
        ("Ada or Bo or Cy", 0.0),
        ("Nobody", 0.0),
        ("", 0.0),
    ],
)
def test_grade_answer_is_exact_match_or_f1_above_the_threshold(answer: str, reward: float) -> None:
    assert grade_answer(answer, "Ada Brandolt") == pytest.approx(reward)


@given(st.text(max_size=60))
def test_grade_answer_is_between_0_and_1(answer: str) -> None:
    grade = grade_answer(answer, "Ada Brandolt")
    assert grade == 0.0 or 0.3 <= grade <= 1.0


def answer_at_once(env: str, say: Any, **params: Any) -> StepResult:
    """Answer `say(right answer)` in the first turn and return the result."""

    async def run() -> StepResult:
        runner = make(env, **params)
        await runner.start()
        result = await runner.step(assistant(f"<answer>{say(runner.tool_env.question.answer)}</answer>"))
        await runner.close()
        return result

    return asyncio.run(run())


def test_only_the_exact_answer_is_success() -> None:
    replies = (lambda answer: answer, lambda answer: f"{answer} x", lambda answer: "x")
    right, part, wrong = (answer_at_once("search_qa", say) for say in replies)
    assert right.success and right.reward == 1.0 and right.terminated
    assert not part.success and 0.3 <= part.reward < 1.0 and part.terminated
    assert not wrong.success and wrong.reward == 0.0


def test_deep_search_records_the_parts_of_its_rubric() -> None:
    right = answer_at_once("deep_search", lambda answer: answer)
    assert right.success and right.reward == 1.0 and right.info["rewards"] == {"exact_match": 1.0, "f1": 1.0}
    parts = [answer_at_once("deep_search", lambda answer: f"{answer} x", index=index) for index in range(12)]
    assert all(part.info["rewards"]["exact_match"] == 0.0 and not part.success for part in parts)
    assert all(part.reward == pytest.approx(0.5 * part.info["rewards"]["f1"]) for part in parts)
    assert any(part.reward > 0 for part in parts)


CHECK = """
async def check(answered):
    assert answered.messages[-1].role == "assistant" and answered.question in answered.messages[1].content
    found = await answered.run_tool("search", {"query": answered.answer})
    return float(str(answered.row["answer"]) in found.text)
"""


def test_custom_reward_sees_the_episode_and_can_call_tools(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CHECK)
    rewards = ({"use": f"{tmp_path}/own.py:check", "weight": 0.25},)
    result = answer_at_once("deep_search", lambda answer: answer, style="hermes", reward=rewards)
    assert result.reward == 0.25 and result.success and result.info["rewards"] == {"check": 1.0}


def test_deep_search_draws_two_or_three_hops() -> None:
    async def hops(index: int) -> int:
        runner = make("deep_search", index)
        await runner.start()
        return len(runner.tool_env.question.path)

    counts = Counter(asyncio.run(hops(index)) for index in range(40))
    assert set(counts) == {2, 3} and min(counts.values()) > 8


def test_find_reward_is_paid_once_per_passage() -> None:
    async def rewards() -> list[float]:
        runner = make("search_qa", find_reward=0.25, top=1)
        await runner.start()
        env = runner.tool_env
        other = next(name for name in env.knowledge.entities if name != env.question.entities[0])
        texts = [env.call("search", query=name) for name in (other, env.question.entities[0], env.question.entities[0])]
        found = [(await runner.step(assistant(text))).reward for text in texts]
        await runner.close()
        return found

    assert asyncio.run(rewards()) == [0.0, 0.25, 0.0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"world": "small", "passages": 12}, "at most 11"),
        ({"passages": 9}, "at least 10"),
        ({"style": "python"}, "style"),
        ({"hops": 4}, "hops"),
    ],
)
def test_invalid_parameters_are_rejected(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_spec("search_qa").check_params(params)
    with pytest.raises(UserError, match="fewest_hops 2 is above hops 1"):
        load_spec("deep_search").check_params({"hops": 1})


def test_small_corpus_is_short_in_tokens_of_tiny() -> None:
    async def transcript() -> tuple[str, list[StepResult]]:
        runner = make("search_qa", **SMALL)
        question = (await make("search_qa", **SMALL).start()).messages[-1].content
        return question, await play_solver(runner)

    question, (found, end) = asyncio.run(transcript())
    tokenizer = tiny_tokenizer()
    lengths = [len(tokenizer.encode(text, add_special_tokens=False)) for text in (question, found.messages[0].content)]
    assert lengths[0] <= 5 and lengths[1] <= 13 and end.success


def test_random_answers_are_legal() -> None:
    async def run(env: str, index: int, **params: Any) -> Counter[bool]:
        runner, rng, invalid = make(env, index, **params), random.Random(index), Counter[bool]()
        await runner.start()
        over = False
        while not over:
            answer = runner.env.random_answer(rng)
            assert answer is not None
            result = await runner.step(assistant(answer))
            invalid[result.invalid] += 1
            over = result.over
        await runner.close()
        return invalid

    for env, params in (("search_qa", {}), ("search_qa", SMALL), ("deep_search", {})):
        for index in range(5):
            assert not asyncio.run(run(env, index, **params))[True]


def test_parameters_are_plain_json() -> None:
    for env in ("search_qa", "deep_search"):
        params = load_spec(env).check_params({})
        assert load_spec(env).check_params(json.loads(json.dumps(params))) == params
        assert all(parameter.description for parameter in load_spec(env).parameters())
