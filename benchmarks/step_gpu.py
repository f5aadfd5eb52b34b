"""B4 on one GPU: a whole training step of SmolLM2-135M in bfloat16, compared with TRL's GRPOTrainer.

    python benchmarks/step_gpu.py --trl-python PATH [--repeats 5] [--groups 32] [--new-tokens 48] [--updates 1]
        [--no-vllm]

Like step_cpu.py, but TRL samples with vLLM in its own process (`vllm_mode="colocate"`), as its documentation recommends
for a GPU, or with transformers' `generate` (--no-vllm). TRL trains float32 weights under bfloat16 autocast, its
default; turnwise trains bfloat16 weights with float32 master weights. PYTHONPATH must make TRL, vLLM and turnwise
importable for PATH.
"""

import argparse

import torch
from step_cpu import Comparison, argument_parser, measure, show, turnwise_side
from step_job import Job

from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.smollm2 import smollm2_folder
from turnwise.render.renderer import Renderer

LONGEST = 2048
"""Maximum of tokens per episode."""


def gpu_engine(loaded: LoadedModel, renderer: Renderer, job: Job) -> NativeEngine:
    stops: list[int] = []
    runner = build_paged_runner(
        loaded.model, slots=job.episodes, longest=LONGEST, stop_ids=stops, decode=renderer.decode, steps=8, share=0.12
    )
    return NativeEngine(loaded.model, slots=job.episodes, stop_ids=stops, decode=renderer.decode, runner=runner)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--no-vllm", action="store_true")
    parser.set_defaults(updates=[1], new_tokens=48, micro_batch=[64], generation_batch=[512])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    measured: list[Comparison] = []
    for updates in args.updates:
        loaded = load_model("smollm2-135m", device="cuda", attn_implementation=ATTENTION)
        compile_layers(loaded.model)
        job = Job(
            model=str(smollm2_folder()),
            device="cuda",
            vllm=not args.no_vllm,
            groups=args.groups,
            new_tokens=args.new_tokens,
            updates=updates,
        )
        side = turnwise_side(job, loaded, gpu_engine)
        for way in args.ways:  # one at a time: three sides do not fit on one GPU
            alone = argparse.Namespace(**{**vars(args), "ways": [way]})
            measured.append(measure(job, side, alone))
            show(measured, args)


if __name__ == "__main__":
    main()
