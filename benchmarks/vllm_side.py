"""vLLM's side of rollout_gpu.py: takes the job as JSON and writes the seconds of each repeat."""

import json
import sys
import time
from pathlib import Path

import torch
from vllm import LLM, SamplingParams

FIRST_ID, VOCABULARY = 20, 49000


def make_contexts(job: dict[str, int]) -> list[list[list[int]]]:
    """Return the same tokens as `Job.contexts`."""
    rng = torch.Generator().manual_seed(1)
    sizes = [job["prompt"]] + [job["observation"]] * (job["turns"] - 1)
    by_turn = [torch.randint(FIRST_ID, VOCABULARY, (job["episodes"], size), generator=rng).tolist() for size in sizes]
    return [list(each) for each in zip(*by_turn, strict=True)]


def roll_out(llm: LLM, new: list[list[list[int]]], job: dict[str, int], sampling: SamplingParams) -> None:
    contexts: list[list[int]] = [[] for _ in new]
    for turn in range(job["turns"]):
        for context, each in zip(contexts, new, strict=True):
            context += each[turn]
        prompts = [{"prompt_token_ids": context} for context in contexts]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        for context, output in zip(contexts, outputs, strict=True):
            context += output.outputs[0].token_ids
            assert len(output.outputs[0].token_ids) == job["new_tokens"]


def main() -> None:
    request = json.loads(sys.argv[1])
    job = request["job"]
    longest = job["prompt"] + job["turns"] * (job["observation"] + job["new_tokens"])
    llm = LLM(
        model=request["model"],
        dtype="bfloat16",
        enable_prefix_caching=True,
        max_num_seqs=job["episodes"],
        max_model_len=longest,
        max_num_batched_tokens=16384,
        gpu_memory_utilization=0.5,
        skip_tokenizer_init=True,
        disable_log_stats=True,
    )
    sampling = SamplingParams(
        temperature=1.0,
        max_tokens=job["new_tokens"],
        ignore_eos=True,
        detokenize=False,
        logprobs=0 if request["logprobs"] else None,
    )
    contexts, seconds = make_contexts(job), []
    for _ in range(request["repeats"] + 1):
        llm.reset_prefix_cache()
        torch.cuda.synchronize()
        began = time.perf_counter()
        roll_out(llm, contexts, job, sampling)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    Path(sys.argv[2]).write_text(json.dumps(seconds[1:]))


if __name__ == "__main__":
    main()
