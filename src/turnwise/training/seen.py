"""What the learner saw of each sampled token when it first learnt from it."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from turnwise.core.samples import Batch, Sample, TrainSample

TOKEN_SCORES = {"token_logprobs": "learner_logprobs", "token_entropies": "entropies"}
"""What `forward_backward` returns one of a token, and the name under which it is recorded."""


class Seen:
    """By sample; the samples must live as long as this does."""

    def __init__(self) -> None:
        self._columns: dict[int, dict[str, Tensor]] = {}

    def add(self, samples: Sequence[TrainSample], batch: Batch, found: Mapping[str, Tensor]) -> None:
        """Of a later epoch nothing is kept: the policy has learnt from the token by then."""
        for scores, name in TOKEN_SCORES.items():
            if scores in found:  # a critic that learns alone sees no log-probabilities
                for index, values in zip(batch.order, found[scores].split(batch.counts), strict=True):
                    self._columns.setdefault(id(samples[index].sample), {}).setdefault(name, values)

    def of(self, sample: Sample) -> dict[str, Tensor]:
        """[K] each, of its sampled tokens; nothing where it was left out."""
        return {name: values.cpu() for name, values in self._columns.get(id(sample), {}).items()}
