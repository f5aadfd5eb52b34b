"""Training on stored episodes: a step's groups are drawn from a replay buffer instead of being played.

Everything after that is the training loop's: advantages, losses and corrections by name, checkpoints, evaluations in
the environment. What a step draws depends on the seed and the step, so a resumed run draws the same.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from turnwise.algos.settings import AlgoConfig
from turnwise.core.learner import Learner, Needs
from turnwise.data.replay import Replay, has_pair
from turnwise.data.replay_files import Entry
from turnwise.data.samples import build_samples
from turnwise.record.steps import EpisodeSource
from turnwise.rollout.failures import DroppedEpisodes
from turnwise.training.scores import score_samples
from turnwise.training.sources.played import SelectGroups, explain_empty
from turnwise.training.step import Rollout, ShowProgress

SCORED_AT_ONCE = 256
"""Trajectories whose log-probabilities are computed before the next ones are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Draws groups of `group_size` episodes of one task, pairs, or single episodes, by what the advantage compares."""

    replay: Replay
    algo: AlgoConfig
    select: SelectGroups
    count: int
    """Groups per step."""
    group_size: int
    run_seed: int
    show: ShowProgress

    async def groups(self, step: int) -> Rollout:
        groups = [self.replay.read_group(members) for members in self._draw(step)]
        self.show("data", len(groups), len(groups))
        kept = self.select(groups)
        return Rollout(
            number=step + 1,
            source=EpisodeSource.STORED,
            groups=groups,
            kept=kept,
            empty=None if kept else explain_empty(groups),
            kept_share=len(kept) / len(groups),
            counts=Counter(),
            dropped=DroppedEpisodes(),
        )

    def _draw(self, step: int) -> Sequence[Sequence[Entry]]:
        key, count = (self.run_seed, step), self.count * self.group_size
        if self.algo.compares_pairs:
            return self.replay.sample_pairs(count // 2, *key)
        if self.algo.needs_groups:
            return self.replay.sample_groups(self.count, self.group_size, *key)
        return [[entry] for entry in self.replay.sample(count, *key)]


def score_rendered(replay: Replay, learner: Learner, micro_tokens: int, show: Callable[[int, int], None]) -> int:
    """Store the current policy's log-probabilities for episodes that have none; return the number of episodes.

    Called before training, so that the initial policy replaces the unknown sampler: ratios then measure how far
    training has moved from it.
    """
    unknown = [entry for entry in replay.entries if not entry.sampled and np.isnan(replay.read_logprobs(entry)).any()]
    for start in range(0, len(unknown), SCORED_AT_ONCE):
        chosen = unknown[start : start + SCORED_AT_ONCE]
        samples = build_samples([replay.read(entry) for entry in chosen])
        policy_logprobs = score_samples(samples, learner, Needs(policy_logprobs=True), micro_tokens)["policy_logprobs"]
        for number, entry in enumerate(chosen):
            parts = [part for sample, part in zip(samples, policy_logprobs, strict=True) if sample.trajectory == number]
            replay.set_logprobs(entry, torch.cat(parts).tolist())
        show(start + len(chosen), len(unknown))
    return len(unknown)


def has_comparable(replay: Replay, algo: AlgoConfig) -> bool:
    """Return whether the buffer has what the advantage compares: two episodes of a task, as a pair if it needs one."""
    needs_pair = algo.compares_pairs
    return any(len(members) > 1 and (not needs_pair or has_pair(members)) for members in replay.groups.values())
