"""vLLM's side of rollout_gpu.py and vision_gpu.py, with its own image processor.

Takes the job as JSON; writes the seconds of each repeat, with log-probabilities and without, after every repeat.
VLLM_GO: a file that it waits for before it measures, so that it can start while others use the GPU.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rollout_job import RolloutJob
from vllm import LLM, SamplingParams


def roll_out(llm: LLM, job: RolloutJob, images: list[list[Any]], name: str, marks: list[int], params: Any) -> None:
    """One `generate` call per turn for the whole batch. An image is one id between two marks, which vLLM expands."""
    text = job.text()
    contexts: list[list[int]] = [[] for _ in text]
    for turn in range(job.turns):
        prompts: list[Any] = []
        for number, context in enumerate(contexts):
            context += [*text[number][turn], *marks]
            prompt: dict[str, Any] = {"prompt_token_ids": list(context)}
            if images:
                shown = images[number][: turn + 1]
                prompt["multi_modal_data"] = {"image": shown}
                prompt["multi_modal_uuids"] = {"image": [f"{name}-{number}-{index}" for index in range(len(shown))]}
            prompts.append(prompt)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        for context, output in zip(contexts, outputs, strict=True):
            # A sampled mark would stand for one more image. turnwise never samples it.
            context += [job.first_id if token in marks else token for token in output.outputs[0].token_ids]
            assert len(output.outputs[0].token_ids) == job.new_tokens


def measure(llm: LLM, job: RolloutJob, request: dict[str, Any], *, logprobs: int | None) -> Iterator[float]:
    """Yield the seconds of each repeat after the first."""
    params = SamplingParams(
        temperature=1.0, max_tokens=job.new_tokens, ignore_eos=True, detokenize=False, logprobs=logprobs
    )
    for round_number in range(request["repeats"] + 1):
        images = job.images(round_number) if job.image_side else []
        llm.reset_prefix_cache()
        began = time.perf_counter()
        roll_out(llm, job, images, f"{logprobs}-{round_number}", request["marks"], params)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if round_number:
            yield time.perf_counter() - began


def main() -> None:
    request = json.loads(sys.argv[1])
    job = RolloutJob(**request["job"])
    llm = LLM(
        model=request["model"],
        enable_prefix_caching=True,
        max_num_seqs=job.episodes,
        max_model_len=job.longest + 16,
        max_num_batched_tokens=16384,
        disable_log_stats=True,
        **request["engine"],
    )
    while (go := os.environ.get("VLLM_GO")) and not Path(go).exists():
        time.sleep(0.1)
    seconds: list[list[float]] = []
    for logprobs in (0, None):
        seconds.append([])
        for each in measure(llm, job, request, logprobs=logprobs):
            seconds[-1].append(each)
            Path(sys.argv[2]).write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
