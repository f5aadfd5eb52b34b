"""A step's groups: rolled out, scored, filtered, and refilled where the filter left too few."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from turnwise.algos.filters import RATE_SCALES
from turnwise.core.errors import Outage
from turnwise.core.samples import Learner
from turnwise.core.trajectory import Group
from turnwise.rewards.scoring import Scored, Scoring, members_of, score_groups
from turnwise.rollout.collect import Collected, Collector, Drawn, GroupCollector
from turnwise.rollout.curriculum import Measured
from turnwise.rollout.losses import Lost
from turnwise.rollout.tasks import TaskSource
from turnwise.training.estimate import Baselines
from turnwise.training.filtering import FilterSettings, filter_groups

Show = Callable[[str, int, int], None]
"""Phase, done, total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    groups: list[Group]
    """All that were rolled out, scored."""
    kept: list[Group]
    """Those that are trained."""
    kept_share: float
    """Share of the groups that passed the filter. Surplus ones, which a full batch has no room for, did pass."""
    rate_scale: float
    """Factor of the step's learning rates."""
    counts: Counter[str]
    baselines: Baselines | None
    """None: the estimator asks for none."""
    lost: Lost
    """Members that are in none of the groups, or whose groups had to be dropped."""

    def metrics(self) -> dict[str, float]:
        return {
            "rollout/kept_groups": float(len(self.kept)),
            "rollout/kept_share": self.kept_share,
            "rollout/members_unscored": float(self.counts["members_unscored"]),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gatherer:
    tasks: TaskSource
    collector: GroupCollector
    greedy: Collector | None
    """Plays one untrained member of each group that is kept; None: the estimator asks for none."""
    scoring: Scoring
    filter: FilterSettings
    learner: Learner
    groups: int
    group_size: int
    refill: int
    """Rounds of more tasks, at most, while fewer groups than `groups` are kept."""
    micro_tokens: int

    async def gather(self, step: int, show: Show, measured: Measured | None = None) -> Gathered:
        """`measured`: how tasks fared so far, where the tasks are drawn by it."""
        groups: list[Group] = []
        kept: list[Group] = []
        counts: Counter[str] = Counter()
        drawn: Drawn = Counter()
        lost = Lost()
        for round in range(1 + self.refill):
            tasks = self.tasks.training(step, self.groups, start=round * self.groups, measured=measured)
            collected = await self.collector.collect(
                tasks,
                group_size=self.group_size,
                round=step,
                drawn=drawn,
                progress=lambda done, total: show("rollout", done, total),
            )
            scored = await self._scored(collected, counts, lost)
            lost.wanted += len(tasks) * self.group_size
            lost.members += len(tasks) * self.group_size - members_of(scored.groups)
            groups += scored.groups
            kept += filter_groups(scored.groups, self.learner, self.filter, self.micro_tokens)
            if len(kept) >= self.groups:
                break
        kept_share, baselines = len(kept) / len(groups), None
        kept = kept[: self.groups]
        if self.greedy is not None and kept:
            baselines = await self._baselines(self.greedy, kept, step, show, counts, lost)
            left = [group for group in kept if (group.task.env, group.task.seed) in baselines]
            lost.members += members_of(kept) - members_of(left)
            kept = left
        return Gathered(
            groups=groups,
            kept=kept,
            kept_share=kept_share,
            rate_scale=RATE_SCALES[self.filter.scale](kept_share),
            counts=counts,
            baselines=baselines,
            lost=lost,
        )

    async def _scored(self, collected: Collected, counts: Counter[str], lost: Lost) -> Scored:
        """What happened on the way is counted, and what the last member was lost to is kept."""
        scored = await score_groups(collected.groups, self.scoring)
        if not scored.groups:
            raise Outage(f"no group of this step could be scored ({scored.last_failure}): mend that first")
        counts += collected.counts
        counts += Counter(groups_unscored=len(scored.failures), members_unscored=scored.left_out)
        lost.why = scored.last_failure or str(collected.last_failure or lost.why)
        return scored

    async def _baselines(
        self, greedy: Collector, kept: list[Group], step: int, show: Show, counts: Counter[str], lost: Lost
    ) -> Baselines:
        collected = await greedy.collect(
            [group.task for group in kept],
            group_size=1,
            round=step,
            progress=lambda done, total: show("greedy members", done, total),
        )
        scored = await self._scored(collected, counts, lost)
        return {(group.task.env, group.task.seed): group.trajectories[0].total_reward for group in scored.groups}
