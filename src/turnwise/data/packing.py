"""Pack samples into batches without padding; prompts shared by group members are computed once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.core.samples import AllowedTokens, Batch, Sample, TrainBatch, TrainSample
from turnwise.data.samples import count_sampled, gather_sampled

SHORTEST_PREFIX = 8
"""Shortest shared prefix that gets its own row."""


def prompt_length(sample: Sample) -> int:
    """Number of tokens that can be shared: the first context without its last token, whose logits are trained on."""
    mask = sample.mask.numpy()
    first_sampled = int(mask.argmax())
    return (first_sampled if mask[first_sampled] else len(sample)) - 1


def prompt_key(sample: Sample) -> bytes:
    return sample.ids[: prompt_length(sample)].numpy().tobytes()


def micro_batches(samples: Sequence[Sample], max_tokens: int, ranks: int = 1) -> list[list[int]]:
    """Group sample indices into micro-batches of at most `max_tokens` computed tokens.

    Samples with the same prompt are neighbours; a sample longer than `max_tokens` gets its own micro-batch. With more
    than one rank, whose numbers of micro-batches must be equal, the last round is filled by making all smaller.
    """
    keys = [prompt_key(sample) for sample in samples]
    order = sorted(range(len(samples)), key=lambda index: (keys[index], -len(samples[index]), index))
    parts = _fill(samples, keys, order, max_tokens)
    if ranks == 1:
        return parts
    most = -(-len(parts) // ranks) * ranks
    low, high = 1, max_tokens  # the smallest limit that gives at most as many
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_fill(samples, keys, order, middle)) <= most else (middle + 1, high)
    return _fill(samples, keys, order, high)


def _fill(samples: Sequence[Sample], keys: Sequence[bytes], order: Sequence[int], max_tokens: int) -> list[list[int]]:
    parts: list[list[int]] = []
    tokens, shared = 0, set[bytes]()
    for index in order:
        prompt = prompt_length(samples[index])
        cost = len(samples[index]) - (prompt if keys[index] in shared and prompt >= SHORTEST_PREFIX else 0)
        if not parts or tokens + cost > max_tokens:
            parts.append([])
            tokens, shared = 0, set()
            cost = len(samples[index])
        parts[-1].append(index)
        tokens += cost
        shared.add(keys[index])
    return parts


def pack(samples: Sequence[Sample]) -> Batch:
    """Pack samples into rows: shared prompts, then samples without one, then the remainders of the others.

    Longer rows come first, so that neighbours have similar lengths.
    """
    if any(bool(sample.mask[0]) for sample in samples):
        raise ValueError(
            "The first token of a sample is marked as sampled, but has no token before it that gives its logits."
        )
    prompts, parent = _shared_prompts(samples)
    skip = [len(prompts[parent[index]]) if index in parent else 0 for index in range(len(samples))]
    order = sorted(range(len(samples)), key=lambda i: (i in parent, skip[i] - len(samples[i]), i))
    ordered = [samples[index] for index in order]
    lengths = torch.tensor([len(samples[index]) - skip[index] for index in order])
    behind = sum(map(len, prompts))
    starts = behind + lengths.cumsum(0) - lengths
    masks = torch.cat([samples[index].mask[skip[index] :] for index in order])
    sampled_at = behind + masks.nonzero().squeeze(1)
    ids = torch.cat([*prompts, *(samples[index].ids[skip[index] :] for index in order)])
    positions = [*map(len, prompts), *(len(samples[index]) for index in order)]
    skipped = [*(0 for _ in prompts), *(skip[index] for index in order)]
    return Batch(
        ids=ids,
        positions=torch.cat([torch.arange(start, end) for start, end in zip(skipped, positions, strict=True)]),
        lengths=(*map(len, prompts), *lengths.tolist()),
        parents=(*(-1 for _ in prompts), *(parent.get(index, -1) for index in order)),
        order=tuple(order),
        counts=tuple(count_sampled(ordered)),
        sources=sampled_at - 1,
        targets=ids[sampled_at],
        temperatures=gather_sampled(ordered, [sample.temperatures for sample in ordered]),
        ends=starts + lengths - 1,
        allowed=_pack_allowed(ordered),
    )


def _pack_allowed(samples: Sequence[Sample]) -> AllowedTokens | None:
    """Return the allowed tokens of all sampled tokens; None if no sample has constraints."""
    if all(sample.allowed is None for sample in samples):
        return None
    numbers: dict[bytes, int] = {}
    rows = list[int]()
    for sample in samples:
        allowed = (b"",) * count_sampled([sample])[0] if sample.allowed is None else sample.allowed
        rows += [numbers.setdefault(allowed_set, len(numbers)) if allowed_set else -1 for allowed_set in allowed]
    sets = torch.frombuffer(bytearray(b"".join(numbers)), dtype=torch.uint8).view(len(numbers), -1)
    return AllowedTokens(sets=sets, rows=torch.tensor(rows))


def _shared_prompts(samples: Sequence[Sample]) -> tuple[list[Tensor], dict[int, int]]:
    """Return the shared prompts and, for each sample with one, its index.

    Members of a group share the whole prompt; the other samples share their common prefix, such as the rules.
    """
    members: dict[bytes, list[int]] = {}
    for index, sample in enumerate(samples):
        members.setdefault(prompt_key(sample), []).append(index)
    shared = [(member, prompt_length(samples[member[0]])) for member in members.values() if len(member) > 1]
    alone = [member[0] for member in members.values() if len(member) == 1]
    if len(alone) > 1:
        shared.append((alone, _common_length([samples[index] for index in alone])))
    shared = [(members, length) for members, length in shared if length >= SHORTEST_PREFIX]
    prompts = [samples[members[0]].ids[:length] for members, length in shared]
    return prompts, {index: number for number, (members, _) in enumerate(shared) for index in members}


def _common_length(samples: Sequence[Sample]) -> int:
    """Length of the common prefix, limited to tokens that can be shared."""
    shortest = min(prompt_length(sample) for sample in samples)
    rows = torch.stack([sample.ids[:shortest] for sample in samples])
    return int((rows == rows[0]).all(dim=0).long().cumprod(0).sum())


def unpack(batch: Batch, values: Tensor) -> list[Tensor]:
    """Split values of the M sampled tokens by sample, in the order given to `pack`."""
    parts = values.split(list(batch.counts))
    return [part for _, part in sorted(zip(batch.order, parts, strict=True), key=lambda pair: pair[0])]


def pack_train(samples: Sequence[TrainSample]) -> TrainBatch:
    batch = pack([sample.sample for sample in samples])
    ordered = [samples[index] for index in batch.order]
    bare = [sample.sample for sample in ordered]

    def sampled(name: str) -> Tensor:
        return gather_sampled(bare, [getattr(sample, name) for sample in ordered])

    def optional(name: str) -> Tensor | None:
        return None if getattr(samples[0], name) is None else sampled(name)

    return TrainBatch(
        batch=batch,
        sampler_logprobs=gather_sampled(bare, [sample.sampler_logprobs for sample in bare]),
        turn_ids=gather_sampled(bare, [sample.turn_ids for sample in bare]),
        old_logprobs=sampled("old_logprobs"),
        advantages=sampled("advantages"),
        weights=sampled("weights"),
        ref_logprobs=optional("ref_logprobs"),
        old_values=optional("old_values"),
        returns=optional("returns"),
        value_weights=optional("value_weights"),
        selected=optional("selected"),
        factors=optional("factors"),
        correction_scale=samples[0].correction_scale,
    )
