"""Samples to packed batches: no padding, and what members of a group have in common only once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.core.samples import Batch, Sample, TrainBatch, TrainSample

SHORTEST_PREFIX = 8
"""Fewer common tokens than this are not worth a row of their own."""


def prompt_length(sample: Sample) -> int:
    """How many tokens can be shared: the first context but its last token, whose logits the sample learns from."""
    return int(sample.mask.to(torch.uint8).argmax()) - 1


def prompt_key(sample: Sample) -> bytes:
    return sample.ids[: prompt_length(sample)].numpy().tobytes()


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[int]]:
    """Indices of samples that go together, with at most `max_tokens` to compute in each.

    Samples that share their prompt are neighbours; a sample longer than `max_tokens` goes alone.
    """
    keys = [prompt_key(sample) for sample in samples]
    order = sorted(range(len(samples)), key=lambda index: (keys[index], -len(samples[index]), index))
    parts: list[list[int]] = []
    tokens, shared = 0, set[bytes]()
    for index in order:
        prompt = prompt_length(samples[index])
        cost = len(samples[index]) - (prompt if keys[index] in shared else 0)
        if not parts or tokens + cost > max_tokens:
            parts.append([])
            tokens, shared = 0, set()
            cost = len(samples[index])
        parts[-1].append(index)
        tokens += cost
        shared.add(keys[index])
    return parts


def pack(samples: Sequence[Sample]) -> Batch:
    """Rows: first the prompts that several samples share, then what is left of each sample, in order.

    A sample alone with its prompt is a root of its own; roots come first, which is the one reordering.
    """
    if any(bool(sample.mask[0]) for sample in samples):
        raise ValueError("a sampled token without a context has no logits it was sampled from")
    members: dict[bytes, list[int]] = {}
    for index, sample in enumerate(samples):
        members.setdefault(prompt_key(sample), []).append(index)
    shared = [each for each in members.values() if len(each) > 1 and prompt_length(samples[each[0]]) >= SHORTEST_PREFIX]
    parent = {index: number for number, each in enumerate(shared) for index in each}
    alone = [index for index in range(len(samples)) if index not in parent]
    order = [*alone, *sorted(parent)]
    cut = [prompt_length(samples[index]) if index in parent else 0 for index in order]
    roots = [samples[each[0]].ids[: prompt_length(samples[each[0]])] for each in shared]
    rows = [*roots, *(samples[index].ids[skip:] for index, skip in zip(order, cut, strict=True))]
    ids = torch.cat(rows)
    before = sum(len(root) for root in roots)
    lengths = torch.tensor([len(samples[index]) - skip for index, skip in zip(order, cut, strict=True)])
    starts = before + lengths.cumsum(0) - lengths
    sampled = torch.cat([(samples[i].mask[skip:]).nonzero().squeeze(1) for i, skip in zip(order, cut, strict=True)])
    counts = torch.tensor([int(samples[index].mask.sum()) for index in order])
    sampled += starts.repeat_interleave(counts)
    positions = [torch.arange(len(root)) for root in roots]
    positions += [torch.arange(skip, len(samples[index])) for index, skip in zip(order, cut, strict=True)]
    return Batch(
        ids=ids,
        positions=torch.cat(positions),
        lengths=(*(len(root) for root in roots), *lengths.tolist()),
        parents=(*(-1 for _ in roots), *(parent.get(index, -1) for index in order)),
        order=tuple(order),
        counts=tuple(counts.tolist()),
        sources=sampled - 1,
        targets=ids[sampled],
        temperatures=torch.cat([samples[index].temperatures[samples[index].mask] for index in order]),
        ends=starts + lengths - 1,
    )


def unpack(batch: Batch, values: Tensor) -> list[Tensor]:
    """Values of the M sampled tokens, by the samples as they were given to `pack`."""
    parts = values.split(list(batch.counts))
    return [part for _, part in sorted(zip(batch.order, parts, strict=True), key=lambda pair: pair[0])]


def pack_train(samples: Sequence[TrainSample]) -> TrainBatch:
    batch = pack([each.sample for each in samples])
    ordered = [samples[index] for index in batch.order]

    def sampled(name: str) -> Tensor:
        return torch.cat([getattr(each, name)[each.sample.mask] for each in ordered])

    def optional(name: str) -> Tensor | None:
        return None if getattr(samples[0], name) is None else sampled(name)

    return TrainBatch(
        batch=batch,
        sampler_logprobs=torch.cat([each.sample.logprobs[each.sample.mask] for each in ordered]),
        turn_ids=torch.cat([each.sample.turn_ids[each.sample.mask] for each in ordered]),
        old_logprobs=sampled("old_logprobs"),
        advantages=sampled("advantages"),
        weights=sampled("weights"),
        ref_logprobs=optional("ref_logprobs"),
        old_values=optional("old_values"),
        returns=optional("returns"),
    )
