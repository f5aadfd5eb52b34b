"""B3: one update on 512 trajectories of 300 to 700 tokens on one GPU: turnwise compared with padded transformers.

    python benchmarks/learner_gpu.py [--repeats 5] [--micro-tokens 65536]

SmolLM2-135M in bfloat16, AdamW, PPO loss. "all tokens": loss on every token except the first of each trajectory, the
worst case; "sampled": on 44 % of them, as in a rollout of B1. Trajectories share no prefix. transformers: the same
trajectories in padded batches of 64, with its own SDPA attention and loss, torch's fused AdamW on bfloat16 parameters,
without compilation. Padding does not count as tokens.
"""

import argparse
from collections.abc import Sequence

import torch
from measuring_gpu import Measurement, measure_update, release_memory, show

from turnwise.algos.critics import TrunkCriticSettings
from turnwise.algos.settings import AlgoConfig
from turnwise.config.training import TrainConfig
from turnwise.core.samples import Sample, TrainSample
from turnwise.data.packing import micro_batches, pack_train
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers
from turnwise.models.loading.load import load_model
from turnwise.run.build_learner import build_learner

TRAJECTORIES, SHORTEST, LONGEST, PADDED_BATCH = 512, 300, 700, 64
PROMPT, ROUND, ACTION = 200, 108, 48
"""Tokens of the first prompt, of an observation and its action together, of an action."""


def trajectories(every_token: bool) -> list[TrainSample]:
    rng = torch.Generator().manual_seed(0)
    samples = []
    for number in range(TRAJECTORIES):
        length = int(torch.randint(SHORTEST, LONGEST + 1, (1,), generator=rng))
        positions = torch.arange(length)
        mask = positions > 0 if every_token else (positions >= PROMPT) & ((positions - PROMPT) % ROUND < ACTION)
        ones = mask.float()
        sample = Sample(
            trajectory=number,
            ids=torch.randint(20, 49000, (length,), generator=rng),
            mask=mask,
            turn_ids=torch.where(mask, 0, -1),
            sampler_logprobs=-10 * ones,
            temperatures=torch.ones(length),
        )
        advantages = ones * float(torch.randn(1, generator=rng))
        weights = ones / (TRAJECTORIES * LONGEST)
        samples.append(
            TrainSample(
                sample=sample,
                old_logprobs=-10 * ones,
                ref_logprobs=None,
                old_values=None,
                advantages=advantages,
                returns=None,
                weights=weights,
                value_weights=None,
            )
        )
    return samples


def measure_learner(micro_tokens: int, repeats: int) -> list[Measurement]:
    """Measure updates including packing."""
    model = load_model("smollm2-135m", device="cuda", attn_implementation=ATTENTION).model
    compile_layers(model)
    learner, measurements = build_learner(AlgoConfig(), TrunkCriticSettings(), TrainConfig(), model), []
    for name, every_token in (("turnwise, all tokens", True), ("turnwise, sampled", False)):
        samples = trajectories(every_token)

        def update(samples: Sequence[TrainSample] = samples) -> None:
            parts = micro_batches([each.sample for each in samples], micro_tokens)
            learner.forward_backward(pack_train([samples[index] for index in part]) for part in parts)
            learner.step()

        measurements.append(measure_update(name, sum(map(len, samples)), update, repeats))
    return measurements


def measure_padded(repeats: int) -> Measurement:
    model = load_model("smollm2-135m", device="cuda").model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    samples = trajectories(True)
    batches = [samples[start : start + PADDED_BATCH] for start in range(0, len(samples), PADDED_BATCH)]

    def update() -> None:
        for batch in batches:
            ids = torch.nn.utils.rnn.pad_sequence([each.sample.ids for each in batch], batch_first=True).cuda()
            sizes = torch.tensor([len(each) for each in batch]).cuda()
            mask = torch.arange(ids.shape[1], device="cuda") < sizes[:, None]
            labels = torch.where(mask, ids, -100)
            model(input_ids=ids, attention_mask=mask.long(), labels=labels, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return measure_update("transformers, padded", sum(map(len, samples)), update, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--micro-tokens", type=int, default=65536)
    args = parser.parse_args()
    measurements = [measure_padded(args.repeats)]
    release_memory()
    measurements += measure_learner(args.micro_tokens, args.repeats)
    show("update", "tokens", measurements)


if __name__ == "__main__":
    main()
