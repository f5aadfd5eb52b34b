"""B3: one update on 512 trajectories of 300 to 700 tokens on one GPU: the learner against padded transformers.

    python benchmarks/learner_gpu.py [--repeats 5] [--micro-tokens 65536]

SmolLM2-135M in bfloat16, AdamW, PPO's loss on every token but the first of each (the worst case: log-probabilities of
all tokens; `sampled` has it on 44 % of them, as a rollout of B1 leaves them). Nothing is shared between trajectories.
transformers: the same trajectories padded to the longest of 64, its own SDPA attention, its own loss, torch's fused
AdamW on bfloat16 parameters, nothing compiled. Tokens are real ones: padding does not count.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from turnwise.config.schema import Config
from turnwise.core.samples import Sample, TrainSample
from turnwise.data.packing import micro_batches, pack_train
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers
from turnwise.models.loading.load import load_model
from turnwise.recipes.build import build_learner

TRAJECTORIES, SHORTEST, LONGEST, PADDED_BATCH = 512, 300, 700, 64
PROMPT, ROUND, ACTION = 200, 108, 48
"""Tokens of a first prompt, of an observation with its action, of an action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    side: str
    tokens: int
    seconds: list[float]
    memory_gib: float

    @property
    def rate(self) -> float:
        return self.tokens / statistics.median(self.seconds)


def trajectories(every_token: bool) -> list[TrainSample]:
    chance = torch.Generator().manual_seed(0)
    made = []
    for number in range(TRAJECTORIES):
        length = int(torch.randint(SHORTEST, LONGEST + 1, (1,), generator=chance))
        places = torch.arange(length)
        mask = places > 0 if every_token else (places >= PROMPT) & ((places - PROMPT) % ROUND < ACTION)
        ones = mask.float()
        sample = Sample(
            trajectory=number,
            ids=torch.randint(20, 49000, (length,), generator=chance),
            mask=mask,
            turn_ids=torch.where(mask, 0, -1),
            logprobs=-10 * ones,
            temperatures=torch.ones(length),
        )
        advantages = ones * float(torch.randn(1, generator=chance))
        weights = ones / (TRAJECTORIES * LONGEST)
        made.append(
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
    return made


def timed(side: str, tokens: int, update: Callable[[], None], repeats: int) -> Reading:
    seconds = []
    for _ in range(repeats + 2):  # the first two compile
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        began = time.perf_counter()
        update()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return Reading(side=side, tokens=tokens, seconds=seconds[2:], memory_gib=torch.cuda.max_memory_allocated() / 2**30)


def learner_readings(micro_tokens: int, repeats: int) -> list[Reading]:
    """Packing included, as in training."""
    model = load_model("smollm2-135m", device="cuda", attn_implementation=ATTENTION).model
    compile_layers(model)
    learner, readings = build_learner(Config(), model), []
    for name, every_token in (("turnwise, all tokens", True), ("turnwise, sampled", False)):
        samples = trajectories(every_token)

        def update(samples: Sequence[TrainSample] = samples) -> None:
            for part in micro_batches([each.sample for each in samples], micro_tokens):
                learner.forward_backward(pack_train([samples[index] for index in part]))
            learner.step()

        readings.append(timed(name, sum(map(len, samples)), update, repeats))
    return readings


def padded_reading(repeats: int) -> Reading:
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

    return timed("transformers, padded", sum(map(len, samples)), update, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--micro-tokens", type=int, default=65536)
    given = parser.parse_args()
    readings = [padded_reading(given.repeats)]
    torch.cuda.empty_cache()
    readings += learner_readings(given.micro_tokens, given.repeats)
    table = Table("side", "tokens", "seconds, median", "lowest", "highest", "tokens/s", "ratio", "GiB at its peak")
    for each in readings:
        numbers = (statistics.median(each.seconds), min(each.seconds), max(each.seconds))
        ratio = each.rate / readings[0].rate
        row = (each.side, str(each.tokens), *(f"{number:.3f}" for number in numbers))
        table.add_row(*row, f"{each.rate / 1e3:.0f}k", f"{ratio:.2f}", f"{each.memory_gib:.1f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
