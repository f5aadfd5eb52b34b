"""vLLM's side of vision_gpu.py: takes the job as JSON and writes the seconds of each repeat, with log-probabilities and
without."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from vision_job import VisionJob
from vllm import LLM, SamplingParams


def roll_out(
    llm: LLM, job: VisionJob, images: list[list[Image]], name: str, marks: list[int], sampling: SamplingParams
) -> None:
    """One `generate` call per turn for the whole batch. An image is one id between two marks, which vLLM expands."""
    text = job.text()
    contexts: list[list[int]] = [[] for _ in text]
    for turn in range(job.turns):
        prompts: list[Any] = []
        for number, context in enumerate(contexts):
            context += [*text[number][turn], *marks]
            shown = images[number][: turn + 1]
            names = [f"{name}-{number}-{index}" for index in range(len(shown))]
            prompts.append(
                {
                    "prompt_token_ids": list(context),
                    "multi_modal_data": {"image": shown},
                    "multi_modal_uuids": {"image": names},
                }
            )
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        for context, output in zip(contexts, outputs, strict=True):
            # A sampled mark would stand for one more image. turnwise never samples it.
            context += [job.first_id if token in marks else token for token in output.outputs[0].token_ids]
            assert len(output.outputs[0].token_ids) == job.new_tokens


def main() -> None:
    request = json.loads(sys.argv[1])
    job = VisionJob(**request["job"])
    llm = LLM(
        model=request["model"],
        dtype=request["dtype"],
        enable_prefix_caching=True,
        max_num_seqs=job.episodes,
        max_model_len=job.longest + 16,
        max_num_batched_tokens=16384,
        limit_mm_per_prompt={"image": job.turns, "video": 0},
        disable_log_stats=True,
        **request["engine"],
    )
    seconds = [measure(llm, job, request, logprobs=logprobs) for logprobs in (0, None)]
    Path(sys.argv[2]).write_text(json.dumps(seconds))


def measure(llm: LLM, job: VisionJob, request: dict[str, Any], *, logprobs: int | None) -> list[float]:
    sampling = SamplingParams(
        temperature=1.0, max_tokens=job.new_tokens, ignore_eos=True, detokenize=False, logprobs=logprobs
    )
    seconds = []
    for round_number in range(request["repeats"] + 1):
        images = job.images(round_number)
        llm.reset_prefix_cache()
        began = time.perf_counter()
        roll_out(llm, job, images, f"{logprobs}-{round_number}", request["marks"], sampling)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


if __name__ == "__main__":
    main()
