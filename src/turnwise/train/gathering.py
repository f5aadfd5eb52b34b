"""A step's groups: rolled out, scored, filtered, and refilled where the filter left too few."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from turnwise.algos.filters import LOSS_SCALES
from turnwise.core.errors import UserError
from turnwise.core.samples import Learner
from turnwise.core.trajectory import Group
from turnwise.rewards.scoring import Scoring, score_groups
from turnwise.rollout.collect import Collector, Drawn, GroupCollector
from turnwise.rollout.curriculum import Measured
from turnwise.rollout.tasks import TaskSource
from turnwise.train.estimate import Baselines
from turnwise.train.filtering import FilterSettings, filter_groups

Show = Callable[[str, int, int], None]
"""Phase, done, total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    groups: list[Group]
    """All that were rolled out, scored."""
    kept: list[Group]
    """Those that are trained."""
    scale: float
    """What the loss is multiplied by."""
    counts: Counter[str]
    baselines: Baselines | None
    """None: the estimator asks for none."""

    def metrics(self) -> dict[str, float]:
        return {"rollout/kept_groups": float(len(self.kept)), "rollout/kept_share": len(self.kept) / len(self.groups)}


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
        for round in range(1 + self.refill):
            tasks = self.tasks.training(step, self.groups, start=round * self.groups, measured=measured)
            collected = await self.collector.collect(
                tasks,
                group_size=self.group_size,
                round=step,
                drawn=drawn,
                progress=lambda done, total: show("rollout", done, total),
            )
            scored = await score_groups(collected.groups, self.scoring)
            if scored.failures and not scored.groups:
                raise UserError(f"no group of this step could be scored ({scored.failures[0]}): mend it, and --resume")
            groups += scored.groups
            kept += filter_groups(scored.groups, self.learner, self.filter, self.micro_tokens)
            counts += collected.counts + Counter(groups_unscored=len(scored.failures))
            if len(kept) >= self.groups:
                break
        kept = kept[: self.groups]
        scale = LOSS_SCALES[self.filter.scale](len(kept) / len(groups))
        baselines = await self._baselines(kept, step, show) if self.greedy is not None and kept else None
        if baselines is not None:
            kept = [
                group for group in kept if (group.task.env, group.task.seed) in baselines
            ]  # else the greedy member failed
        return Gathered(groups=groups, kept=kept, scale=scale, counts=counts, baselines=baselines)

    async def _baselines(self, kept: list[Group], step: int, show: Show) -> Baselines:
        assert self.greedy is not None
        collected = await self.greedy.collect(
            [group.task for group in kept],
            group_size=1,
            round=step,
            progress=lambda done, total: show("greedy members", done, total),
        )
        scored = await score_groups(collected.groups, self.scoring)
        return {(group.task.env, group.task.seed): group.trajectories[0].total_reward for group in scored.groups}
