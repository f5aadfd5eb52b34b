"""B4 on one GPU: a whole training step of SmolLM2-135M in bfloat16, turnwise against TRL's GRPOTrainer.

    python benchmarks/step_gpu.py --trl-python PATH [--repeats 5] [--groups 32] [--new-tokens 48] [--updates 1]
        [--no-vllm]

As step_cpu.py, but that TRL samples with vLLM in its own process (`vllm_mode="colocate"`), as its documentation says
for a GPU; --no-vllm has it take transformers' `generate`. TRL trains float32 weights under bfloat16 autocast, its
default; turnwise bfloat16 weights with float32 masters. PYTHONPATH must lead PATH to TRL, vLLM and turnwise.
"""

import argparse

import torch
from step_cpu import Measured, arguments, measure, show, turnwise_side
from step_job import Job

from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.smollm2 import smollm2_folder
from turnwise.render.renderer import Renderer

LONGEST = 2048
"""Tokens of an episode, at most."""


def gpu_engine(loaded: LoadedModel, renderer: Renderer, job: Job) -> NativeEngine:
    stops: list[int] = []
    runner = build_paged_runner(
        loaded.model, slots=job.episodes, longest=LONGEST, stop_ids=stops, decode=renderer.decode, steps=8, share=0.12
    )
    return NativeEngine(loaded.model, slots=job.episodes, stop_ids=stops, decode=renderer.decode, runner=runner)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--no-vllm", action="store_true")
    parser.set_defaults(updates=[1], new_tokens=48, micro_batch=[64], generation_batch=[512])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    measured: list[Measured] = []
    for updates in given.updates:
        loaded = load_model("smollm2-135m", device="cuda", attn_implementation=ATTENTION)
        compile_layers(loaded.model)
        job = Job(
            model=str(smollm2_folder()),
            device="cuda",
            vllm=not given.no_vllm,
            groups=given.groups,
            new_tokens=given.new_tokens,
            updates=updates,
        )
        side = turnwise_side(job, loaded, gpu_engine)
        for way in given.ways:  # one at a time: three sides do not fit on one GPU
            alone = argparse.Namespace(**{**vars(given), "ways": [way]})
            measured.append(measure(job, side, alone))
            show(measured, given)


if __name__ == "__main__":
    main()
