"""A judge that is loaded here: the same seam, the native engine, tiny."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.images import image_hash
from turnwise.core.messages import user
from turnwise.core.task import EpisodeKey
from turnwise.engine.scripted import ScriptedEngine
from turnwise.models.loading.load import load_model
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.pictures.image import Image
from turnwise.render.renderer import Renderer
from turnwise.rewards.judge.budget import JudgeBudget, JudgeCounts
from turnwise.rewards.judge.client import AnswerCache, JudgeClient
from turnwise.rewards.judge.judges import AnswerJudge, AnswerJudgeSettings
from turnwise.rewards.judge.local import LoadedJudge, LocalJudgeModel
from turnwise.rewards.judge.prompts import absolute_prompt, read_score
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.rubric import Submission

ANSWERED = Submission(question="The capital?", answer="Paris", row={})


def test_local_judge_reads_and_caches_scores(tmp_path: Path) -> None:
    renderer = Renderer(tiny_tokenizer())
    heard: list[str] = []

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        heard.append(renderer.decode(ids))
        return renderer.answer('{"score": 3}')

    judge = AnswerJudgeSettings(model="tiny", rubric="is right", endpoint="local", cache=str(tmp_path))
    counts = JudgeCounts()
    policy = ScriptedEngine(script, sorted(renderer.stop_ids))
    model = LocalJudgeModel(judge, JudgeBudget(10, 100_000, counts), lambda: LoadedJudge(policy, renderer))
    client = JudgeClient(judge, model, AnswerCache(judge.cache), counts)
    messages = absolute_prompt((("agent", "Paris"),), "The capital?", "", judge)
    for _ in range(2):
        assert asyncio.run(client.ask(messages, lambda text: read_score(text, judge.scale))) == 0.3
    assert len(heard) == 1 and "The rubric: is right" in heard[0]
    assert (counts.calls, counts.cached) == (1, 1) and counts.tokens > 100


def test_local_judge_runs_the_native_engine(tmp_path: Path) -> None:
    """An untrained model says nothing that can be read: asked again, counted, and never a score."""
    judges = JudgeRegistry()
    options = {"model": "tiny", "rubric": "is right", "endpoint": "local", "cache": str(tmp_path)}
    settings = AnswerJudgeSettings(**options, max_tokens=4, asks=2)
    judge = AnswerJudge(settings=settings, client=judges.client(settings))
    with pytest.raises(InfrastructureFailure, match=r"the judge tiny gave no verdict \(asked 2 times\)"):
        asyncio.run(judge(ANSWERED))
    counts = judge.client.counts
    assert (counts.calls, counts.unreadable) == (2, 2)
    assert counts.tokens > 2 * 100 and judges.metrics()["judge/unreadable"] == 2
    with pytest.raises(InfrastructureFailure):  # another event loop: the model is not loaded again
        asyncio.run(judge(replace(ANSWERED, answer="Lyon")))
    assert counts.calls == 4
    with pytest.raises(InfrastructureFailure, match=r"it was cut at a token limit \(raise its max_tokens above 4, or "):
        asyncio.run(judge(ANSWERED))
    assert counts.calls == 4, "it would give the same answers again"


def test_local_judge_reads_images_if_its_model_does(tmp_path: Path) -> None:
    def model_of(name: str) -> LocalJudgeModel:
        settings = AnswerJudgeSettings(model=name, rubric="is right", endpoint="local", max_tokens=1, device="cpu")
        return LocalJudgeModel(settings, JudgeBudget(10, 100_000, counts))

    counts = JudgeCounts()
    shown = [user([Image(np.zeros((8, 16, 3), np.uint8)), "What is this?"])]
    with pytest.raises(UserError, match="The judge tiny reads text only, but observations contain images"):
        asyncio.run(model_of("tiny")(shown))
    assert counts.calls == 0
    asyncio.run(model_of("tiny_vlm")(shown))
    assert counts.calls == 1


def test_local_judge_forgets_images_that_no_request_shows() -> None:
    settings = AnswerJudgeSettings(model="tiny_vlm", rubric="is right", endpoint="local", max_tokens=1, device="cpu")
    loaded, held = load_model("tiny_vlm", device="cpu"), list[int]()
    assert loaded.images is not None
    renderer, store = Renderer(loaded.tokenizer, loaded.stop_ids, images=loaded.images), loaded.images.store
    images = [Image(np.full((8, 8, 3), shade, np.uint8)) for shade in range(3)]

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        held.append(sum(image_hash(each.data) in store for each in images))
        return []

    judge = LocalJudgeModel(
        settings,
        JudgeBudget(10, 100_000, JudgeCounts()),
        load=lambda: LoadedJudge(ScriptedEngine(script, renderer.stop_ids), renderer),
    )

    async def ask() -> None:
        first, second, third = ([user([image, "What is this?"])] for image in images)
        await asyncio.gather(judge([*first, *second]), judge(first))
        await judge(third)

    asyncio.run(ask())
    assert held[-1] == 1 and max(held) == 2
    assert not any(image_hash(each.data) in store for each in images)
    ids = renderer.start([user([images[0], "What is this?"])])
    with judge._keeping_images(renderer, ids):
        with judge._keeping_images(renderer, ids):
            pass
        assert image_hash(images[0].data) in store  # of a request that still runs
