"""Rollout and update with images in the shape of Qwen2-VL-2B on one GPU, compared with vLLM and padded transformers.

    python benchmarks/vision_gpu.py [--repeats 5] [--profile] [--vllm] [--small] [--folder FOLDER] [--parts ...]

Rollout: 256 concurrent episodes of 5 turns. Each turn shows a new image of 224 x 224 pixels (64 tokens) after 20 text
tokens, the first one after 200, and samples 48 tokens with their log-probabilities, in bfloat16 with random weights.
Images are new in every repeat, and their processing is part of the time; those of turnwise are encoded as PNG before.

Update: one optimizer step on these 256 trajectories, loss on the sampled tokens, vision tower frozen; "features kept":
the rollout computed the images' features, as in training; "features computed": all are computed again. transformers:
the same trajectories in padded batches of 16, SDPA attention, its own loss, torch's fused AdamW on bfloat16 parameters.

--vllm   the same rollout in vLLM, in a separate process, with prefix caching, one `generate` call per turn for the
         whole batch, with and without log-probabilities. vLLM processes the images itself.
         --vllm-limit: seconds after which it is stopped; what it has measured by then is shown.
--profile where two turns of the rollout spend their time, on the GPU and on the host.
--parts  rollout, update or both; with neither, vLLM alone.
--folder keeps the model, for a later call.
--small  a few small episodes on any device, to try the benchmark out. Its numbers mean nothing.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measuring_gpu import Measurement, measure_update, measure_vllm, release_memory, show, timed
from profiling_gpu import show_profile
from rollout_job import RolloutJob
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from turnwise.algos.critics import TrunkCriticSettings
from turnwise.algos.settings import AlgoConfig
from turnwise.config.training import TrainConfig
from turnwise.core.images import find_images
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.samples import Sample, TrainSample
from turnwise.core.task import EpisodeKey, Task
from turnwise.data.packing import micro_batches, pack_train
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.models.vision.encoder import image_encoder
from turnwise.pictures.image import encode_png
from turnwise.run.build_learner import build_learner

MARKS = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")
PADDED_BATCH, MICRO_TOKENS = 16, 8192
LARGE = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
}
LARGE_VISION = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "hidden_size": 1536, "patch_size": 14}
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
}
SMALL_VISION = {"depth": 2, "embed_dim": 64, "num_heads": 2, "hidden_size": 128, "patch_size": 4}
JOB = RolloutJob(episodes=256, observation=20, image_side=224, first_id=5000, last_id=150_000)
SMALL_JOB = RolloutJob(
    episodes=6,
    turns=2,
    prompt=12,
    observation=4,
    new_tokens=5,
    image_side=24,
    token_pixels=8,
    first_id=1700,
    last_id=2048,
)


def write_model(folder: Path, job: RolloutJob, *, small: bool) -> list[int]:
    """Write a Qwen2-VL with random weights and its processor; return the ids of MARKS."""
    tokenizer = tiny_tokenizer(*MARKS, "<|video_pad|>")
    image, start, end, video = tokenizer.convert_tokens_to_ids([*MARKS, "<|video_pad|>"])
    text, vision = (SMALL, SMALL_VISION) if small else (LARGE, LARGE_VISION)
    head_dim = text["hidden_size"] // text["num_attention_heads"]
    eighth = head_dim // 16
    config = Qwen2VLConfig(
        text_config=text
        | {
            "max_position_embeddings": 8192,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [2 * eighth, 3 * eighth, 3 * eighth],
            },
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config=vision | {"spatial_merge_size": 2, "temporal_patch_size": 2},
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2VLForConditionalGeneration(config)
    model.to(torch.float32 if small else torch.bfloat16).save_pretrained(folder)
    write_processor(folder, tokenizer, vision["patch_size"], job.image_side**2)
    return [start, image, end]


def write_processor(folder: Path, tokenizer: Any, patch: int, max_pixels: int) -> None:
    """Write the files that Qwen2-VL has on the hub: vLLM reads these for images and videos alike."""
    tokenizer.save_pretrained(folder)
    settings = {
        "processor_class": "Qwen2VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": (2 * patch) ** 2,
        "max_pixels": max_pixels,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def build_engine(loaded: LoadedModel, job: RolloutJob) -> NativeEngine:
    common: dict[str, Any] = {"slots": job.episodes, "stop_ids": [], "decode": str}
    if not torch.cuda.is_available():
        return NativeEngine(loaded.model, **common)
    runner = build_paged_runner(loaded.model, **common, longest=job.longest + 16, steps=8, share=0.4)
    return NativeEngine(loaded.model, **common, runner=runner)


def measure_rollout(
    loaded: LoadedModel, engine: NativeEngine, job: RolloutJob, marks: list[int], repeats: int
) -> tuple[Measurement, list[Sample]]:
    """Return the seconds and the last round's trajectories."""
    seconds, samples = [], list[Sample]()
    for round_number in range(repeats + 1):  # the first one includes compilation and graph capture
        images = pngs(job, round_number)
        played, elapsed = timed(lambda images=images: asyncio.run(roll_out(engine, loaded.images, job, images, marks)))  # type: ignore[misc]
        seconds.append(elapsed)
        samples = [build_sample(number, *each) for number, each in enumerate(played)]
    return Measurement(side="turnwise", count=job.episodes, seconds=seconds[1:]), samples


async def roll_out(
    engine: NativeEngine, encode: Any, job: RolloutJob, images: list[list[bytes]], marks: list[int]
) -> list[tuple[list[list[int]], list[Completion]]]:
    """Return the ids before each turn and what was sampled. Each image is processed when its turn begins."""
    sampling, text = Sampling(max_tokens=job.new_tokens), job.text()

    async def episode(number: int) -> tuple[list[list[int]], list[Completion]]:
        key = EpisodeKey(run_seed=0, round=0, task=Task(env="benchmark", seed=number), member=0)
        contexts, said = list[list[int]](), list[Completion]()
        async with engine.open(key) as session:
            for ids, image in zip(text[number], images[number], strict=True):
                contexts.append([*ids, marks[0], *encode.ids(image), marks[2]])
                said.append(await session.generate(contexts[-1], sampling))
        return contexts, said

    return await asyncio.gather(*(episode(number) for number in range(job.episodes)))


def build_sample(number: int, contexts: Sequence[list[int]], said: Sequence[Completion]) -> Sample:
    ids, mask = list[int](), list[bool]()
    for context, each in zip(contexts, said, strict=True):
        ids += [*context, *each.ids]
        mask += [False] * len(context) + [True] * len(each.ids)
    chosen = torch.tensor(mask)
    logprobs = torch.zeros(len(ids))
    logprobs[chosen] = torch.tensor([value for each in said for value in each.logprobs])
    return Sample(
        trajectory=number,
        ids=torch.tensor(ids),
        mask=chosen,
        turn_ids=torch.where(chosen, 0, -1),
        sampler_logprobs=logprobs,
        temperatures=torch.ones(len(ids)),
    )


def measure_learner(loaded: LoadedModel, samples: Sequence[Sample], repeats: int) -> list[Measurement]:
    """Measure updates including packing, with features that the rollout left and without."""
    learner, encoder = (
        build_learner(AlgoConfig(), TrunkCriticSettings(), TrainConfig(), loaded.model),
        image_encoder(loaded.model),
    )
    assert encoder is not None
    tokens = sum(map(len, samples))
    trained = [train_sample(each, 1 / tokens) for each in samples]

    def update() -> None:
        parts = micro_batches(samples, MICRO_TOKENS)
        learner.forward_backward(pack_train([trained[index] for index in part]) for part in parts)
        learner.step()

    def update_without_features() -> None:
        encoder._version = -1  # as if the vision tower had changed
        update()

    return [
        measure_update("turnwise, features kept", tokens, update, repeats),
        measure_update("turnwise, features computed", tokens, update_without_features, repeats),
    ]


def train_sample(sample: Sample, weight: float) -> TrainSample:
    ones = sample.mask.float()
    return TrainSample(
        sample=sample,
        old_logprobs=sample.sampler_logprobs,
        ref_logprobs=None,
        old_values=None,
        advantages=ones,
        returns=None,
        weights=weight * ones,
        value_weights=None,
    )


def measure_padded(folder: Path, encode: Any, samples: Sequence[Sample], repeats: int) -> Measurement:
    """`encode`: the image processor of the samples, which has their images."""
    loaded = load_model(str(folder), device="auto")
    model, placeholder = loaded.model, encode.placeholder_id
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-6, fused=True)
    batches = [samples[start : start + PADDED_BATCH] for start in range(0, len(samples), PADDED_BATCH)]
    device = model.get_input_embeddings().weight.device

    def update() -> None:
        for batch in batches:
            shown = [encode.process(span.hash).inputs for each in batch for span in find_images(each.ids.tolist())]
            padded = torch.nn.utils.rnn.pad_sequence(
                [each.ids.clamp(min=-1) for each in batch], batch_first=True, padding_value=-2
            ).to(device)
            present, is_image = padded != -2, padded == -1
            chosen = torch.nn.utils.rnn.pad_sequence([each.mask for each in batch], batch_first=True).to(device)
            ids = torch.where(is_image, placeholder, padded.clamp(min=0))
            pixels = encode.expand(torch.cat([each["pixel_values"] for each in shown]).to(device)).to(model.dtype)
            grids = torch.cat([each["image_grid_thw"] for each in shown]).to(device)
            labels = torch.where(chosen, ids, -100)
            model(
                input_ids=ids,
                attention_mask=present.long(),
                pixel_values=pixels,
                image_grid_thw=grids,
                mm_token_type_ids=is_image.int(),
                labels=labels,
                use_cache=False,
            ).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return measure_update("transformers, padded", sum(map(len, samples)), update, repeats)


def vllm_arguments(job: RolloutJob, *, small: bool) -> dict[str, Any]:
    images = {"limit_mm_per_prompt": {"image": job.turns, "video": 0}}
    if small:
        return images | {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 128 << 20}
    return images | {"dtype": "bfloat16", "gpu_memory_utilization": 0.2, "kv_cache_memory_bytes": 8 << 30}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", nargs="*", choices=("rollout", "update"), default=["rollout", "update"])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--vllm-limit", type=float)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    job = SMALL_JOB if args.small else JOB
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        marks = prepare_model(folder, job, small=args.small)
        rollout = measure_turnwise(folder, job, marks, args) if args.parts else []
        if args.vllm:
            release_memory()
            engine = vllm_arguments(job, small=args.small)
            others = measure_vllm(job, folder, args.repeats, engine, marks, limit_s=args.vllm_limit)
            show("rollout", "episodes", [*others, *rollout])


def prepare_model(folder: Path, job: RolloutJob, *, small: bool) -> list[int]:
    """Write the model unless the folder has it; return the ids of MARKS."""
    written = folder / "marks.json"
    if not written.exists():
        written.write_text(json.dumps(write_model(folder, job, small=small)))
    return json.loads(written.read_text())


def measure_turnwise(folder: Path, job: RolloutJob, marks: list[int], args: argparse.Namespace) -> list[Measurement]:
    """Measure and show the parts; return the rollout."""
    loaded = load_model(str(folder), device="auto", attn_implementation=ATTENTION)
    if torch.cuda.is_available():
        compile_layers(loaded.model)
    engine = build_engine(loaded, job)
    rollout, samples = measure_rollout(loaded, engine, job, marks, args.repeats)
    show("rollout", "episodes", [rollout])
    if args.profile:
        short = replace(job, turns=2)
        shown = iter([pngs(short, 1000), pngs(short, 1001)])  # it runs twice
        show_profile("two turns", lambda: asyncio.run(roll_out(engine, loaded.images, short, next(shown), marks)))
    if "update" in args.parts:
        release_memory()
        updates = measure_learner(loaded, samples, args.repeats)
        show("update", "tokens", updates)
        images = loaded.images
        del loaded, engine
        release_memory()
        show("update", "tokens", [measure_padded(folder, images, samples, args.repeats), *updates])
    return [rollout]


def pngs(job: RolloutJob, round_number: int) -> list[list[bytes]]:
    return [[encode_png(image) for image in shown] for shown in job.images(round_number)]


if __name__ == "__main__":
    main()
