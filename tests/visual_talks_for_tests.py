"""Episodes of a native engine with images, as samples with the sampler's log-probabilities."""

import asyncio
from typing import Any

import torch

from turnwise.core.messages import ImagePart, Message, TextPart, system
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.samples import Sample
from turnwise.core.task import EpisodeKey, Task
from turnwise.data.packing import pack, unpack
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.loading.load import LoadedModel
from turnwise.render.renderer import Renderer
from turnwise.training.learner import token_logprobs
from vision_models_for_tests import png

WIDE, SQUARE = png(40, 24), png(16, 16, seed=1)


def renderer_of(loaded: LoadedModel) -> Renderer:
    return Renderer(loaded.tokenizer, loaded.stop_ids, images=loaded.images)


def look(*images: bytes, text: str = "What now?") -> Message:
    return Message(
        role="user", parts=(TextPart(text="Look: "), *(ImagePart(data=each) for each in images), TextPart(text=text))
    )


def sample_of(ids: list[int], sampled: int) -> Sample:
    """Return a sample whose last tokens were sampled."""
    mask = torch.arange(len(ids)) >= len(ids) - sampled
    return Sample(
        trajectory=0,
        ids=torch.tensor(ids),
        mask=mask,
        turn_ids=mask.long() - 1,
        sampler_logprobs=torch.zeros(len(ids)),
        temperatures=torch.ones(len(ids)),
    )


async def play(
    engine: NativeEngine, renderer: Renderer, member: int, images: list[bytes]
) -> tuple[Sample, list[float]]:
    """Play an episode with an image before every turn; return its sample and the sampler's log-probabilities."""
    ids, mask, logprobs = list[int](), list[bool](), list[float]()
    context, said = renderer.start([system("Play."), look(images[0])]), Completion
    task = Task(env="look", params={}, seed=3)
    async with engine.open(EpisodeKey(run_seed=0, round=0, task=task, member=member, attempt=0)) as session:
        for image in [*images[1:], None]:
            said = await session.generate(context, Sampling(max_tokens=6))
            ids += [*context, *said.ids]
            mask += [False] * len(context) + [True] * len(said.ids)
            logprobs += said.logprobs
            if image is not None:
                context = renderer.extend([look(image, SQUARE)], said.stop)
    marked = torch.tensor(mask)
    sample = sample_of(ids, 1)
    return Sample(
        **{name: getattr(sample, name) for name in ("trajectory", "ids", "sampler_logprobs", "temperatures")},
        mask=marked,
        turn_ids=marked.long() - 1,
    ), logprobs


def engine_of(loaded: LoadedModel, renderer: Renderer, *, paged: bool = False, **settings: Any) -> NativeEngine:
    """`settings`: of the paged runner."""
    common: dict[str, Any] = {"slots": 4, "stop_ids": renderer.stop_ids, "decode": renderer.decode}
    runner = build_paged_runner(loaded.model, **common, longest=1024, **settings) if paged else None
    return NativeEngine(loaded.model, **common, runner=runner)


def assert_agrees_with_the_learner(loaded: LoadedModel, played: list[tuple[Sample, list[float]]]) -> None:
    """Compare the sampler's log-probabilities of each episode with the learner's."""
    batch = pack([sample for sample, _ in played])
    with torch.no_grad():
        found, *_ = token_logprobs(loaded.model, batch)
    for (_, sampled), scored in zip(played, unpack(batch, found), strict=True):
        torch.testing.assert_close(scored, torch.tensor(sampled), atol=2e-4, rtol=1e-3)


async def play_all(engine: NativeEngine, renderer: Renderer) -> list[tuple[Sample, list[float]]]:
    others = [WIDE, png(24, 40, seed=2), png(8, 8, seed=3)]
    return await asyncio.gather(
        play(engine, renderer, 0, others),
        play(engine, renderer, 1, others),
        play(engine, renderer, 2, [png(40, 24, seed=4), *others[1:]]),
    )
