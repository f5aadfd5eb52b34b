"""How long an episode may be, in tokens and in time; limits in turns and actions are the environment's own."""

from dataclasses import dataclass, replace

from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Status
from turnwise.rollout.context import Pending


def waited_for(error: TimeoutError) -> str:
    """Who was, when time was over: rewards that are cut off say so in a note; else it is all but the agent."""
    notes: list[str] = getattr(error.__cause__, "__notes__", [])
    return notes[0] if notes else "the environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    sampling: Sampling
    """Of a turn; its `max_tokens` is the most that a turn may sample."""
    max_tokens: int
    """Of the context, at any time. One that starts anew need not grow: what then ends an episode whose environment has
    no limit of its own is the time."""
    timeout_s: float
    """Limit of the agent's own sampling, and again of everything outside it, as `EpisodeClock` measures them."""

    def check(self, pending: Pending) -> Status:
        return Status.ONGOING if pending.context_length < self.max_tokens else Status.TRUNCATED_TOKENS

    def turn_sampling(self, pending: Pending) -> Sampling:
        """The turn's budget shrinks to what is left, so that the last turn never overruns the context."""
        most = self.sampling.max_tokens if pending.max_new_tokens is None else pending.max_new_tokens
        most = min(most, self.max_tokens - pending.context_length)
        return self.sampling if most == self.sampling.max_tokens else replace(self.sampling, max_tokens=most)
