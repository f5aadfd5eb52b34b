"""What the learner says of samples, micro-batch by micro-batch."""

from collections.abc import Sequence

from torch import Tensor

from turnwise.core.samples import Learner, Needs, Sample
from turnwise.data.packing import micro_batches, pack, unpack

COLUMNS = ("logprobs", "entropy", "values", "ref_logprobs")


def score_samples(
    samples: Sequence[Sample], learner: Learner, needs: Needs, micro_tokens: int
) -> dict[str, list[Tensor]]:
    """What was asked for, by name: one tensor a sample, a number for each of its sampled tokens.

    Values come with "end_values", a number a sample: after its last token.
    """
    if not needs.anything:
        return {}
    parts = micro_batches(samples, micro_tokens)
    batches = [pack([samples[index] for index in part]) for part in parts]
    found: dict[str, dict[int, Tensor]] = {}
    for part, batch, scores in zip(parts, batches, learner.score(batches, needs), strict=True):
        for name in COLUMNS:
            column = getattr(scores, name)
            if column is not None and getattr(needs, name):
                found.setdefault(name, {}).update(zip(part, unpack(batch, column), strict=True))
        if scores.end_values is not None:
            in_order = [part[index] for index in batch.order]
            found.setdefault("end_values", {}).update(zip(in_order, scores.end_values.unbind(), strict=True))
    return {name: [column[index] for index in range(len(samples))] for name, column in found.items()}
