"""A turn while it is sampled: its tokens so far, and whether the last one ends it. For any engine."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from turnwise.core.protocols import Completion, Sampling
from turnwise.core.trajectory import Stop


@dataclass(slots=True, eq=False, kw_only=True)
class SampledTurn:
    """A turn that is being sampled. `stop` is None while it runs."""

    sampling: Sampling
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    """One per token if the engine has a value head, else empty."""
    versions: list[int] = field(default_factory=list)
    """Policy versions of the tokens sampled before the last change of weights."""
    stop: Stop | None = None

    def label_tokens(self, version: int) -> None:
        """Label the tokens without a version with this one. To be called before the weights change."""
        self.versions += [version] * (len(self.ids) - len(self.versions))

    def complete(self, version: int) -> Completion:
        """Return the finished turn. `version`: of the weights that sampled the last tokens."""
        assert self.stop is not None
        self.label_tokens(version)
        return Completion(
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            stop=self.stop,
            temperature=self.sampling.temperature or 1.0,
            policy_versions=tuple(self.versions),
            values=tuple(self.values),
            constraint=self.sampling.constraint,
        )


def stop_reason(turn: SampledTurn, stop_ids: Collection[int], decode: Callable[[list[int]], str]) -> Stop | None:
    """Return why the last token ended the turn, or None if the turn continues."""
    if turn.ids[-1] in stop_ids or turn.ids[-1] in turn.sampling.stop_ids:
        return Stop.EOS
    if turn.sampling.stop:
        # A character is at most 4 tokens (bytes), so these last tokens contain any stop string.
        tail = 4 * max(len(text) for text in turn.sampling.stop)
        text = decode(turn.ids[-tail:])
        if any(stop in text for stop in turn.sampling.stop):
            return Stop.STRING
    return Stop.LENGTH if len(turn.ids) >= turn.sampling.max_tokens else None
