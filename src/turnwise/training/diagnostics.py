"""Diagnostics of a run: alarms and rollback, and measurements every n steps that need passes of the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from turnwise.algos.alarms import Alarm, AlarmSettings, check_alarms
from turnwise.algos.diagnostics import (
    gradient_shares,
    information_metrics,
    measure_retrieval,
    mutual_information,
    reward_std_buckets,
)
from turnwise.algos.filters import group_std
from turnwise.core.learner import Learner, LossTerm, Needs, StepSettings
from turnwise.core.samples import Sample, TrainSample
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.packing import micro_batches, pack_train
from turnwise.record.rows import select
from turnwise.record.run_folder import RunFolder
from turnwise.record.steps import EpisodeSource, StepRecord
from turnwise.training.checkpoints import Checkpoints, State, read_state, step_of
from turnwise.training.scores import score_samples
from turnwise.training.step import Estimate, Metrics, Part, Rollout
from turnwise.training.update import UpdateSettings, add_factors, add_step_statistics, train_samples


def is_due(every: int, step: int) -> bool:
    """Return whether something that happens every `every` steps is due. 0 means never."""
    return every > 0 and step % every == 0


def mutual_information_metrics(
    groups: Sequence[Group], learner: Learner, prompts: int, micro_tokens: int
) -> dict[str, float]:
    """Measure how much the reasoning depends on the prompt, in the first turn of one member per group.

    The reasoning is the thinking, or everything sampled if there is none. Empty with fewer than two groups.
    """
    members = [group.trajectories[0] for group in groups if group.trajectories[0].turns][:prompts]
    if len(members) < 2:
        return {}
    pairs = [_join(prompt, reasoning) for reasoning in members for prompt in members]
    scores = score_samples(pairs, learner, Needs(policy_logprobs=True), micro_tokens)["policy_logprobs"]
    likelihoods = torch.stack([score.sum() for score in scores]).view(len(members), len(members))
    own = torch.arange(len(members))
    information = mutual_information(likelihoods, own)
    numbers: dict[tuple[int, ...], int] = {}
    same = torch.tensor([numbers.setdefault(member.turns[0].context_ids, len(numbers)) for member in members])
    metrics = information_metrics(information, measure_retrieval(likelihoods, own, same))
    return {f"diagnostics/{name}": value for name, value in metrics.items()}


def _join(prompt: Trajectory, reasoning: Trajectory) -> Sample:
    """Return a sample of one trajectory's prompt and another's first reasoning, which is scored."""
    turn = reasoning.turns[0]
    thoughts = [span for span in turn.spans if span.name == "think"]
    reasoning_ids = turn.action_ids[: thoughts[0].end] if thoughts else turn.action_ids
    context = prompt.turns[0].context_ids
    mask = torch.tensor([False] * len(context) + [True] * len(reasoning_ids))
    return Sample(
        trajectory=0,
        ids=torch.tensor([*context, *reasoning_ids]),
        mask=mask,
        turn_ids=torch.where(mask, 0, -1),
        sampler_logprobs=torch.zeros(len(mask)),
        temperatures=torch.where(mask, turn.temperature, 1.0),
    )


def gradient_metrics(
    groups: Sequence[Group], estimated: Estimate, learner: Learner, settings: UpdateSettings, buckets: int
) -> dict[str, float]:
    """Return shares of the gradient norm of each loss term by quantile of the groups' reward std. Takes no step."""
    returns = torch.tensor([trajectory.total_reward for group in groups for trajectory in group.trajectories])
    group_of_row = torch.tensor([number for number, group in enumerate(groups) for _ in group.trajectories])
    bucket_of_group = reward_std_buckets(group_std(returns, group_of_row, len(groups)), buckets).tolist()
    members: list[set[int]] = [set() for _ in range(buckets)]
    for index, group_number in enumerate(estimated.group_ids):
        members[bucket_of_group[group_number]].add(index)
    norms: dict[str, list[float]] = {}
    for part in members:
        for term, norm in _norms(part, estimated, learner, settings).items():
            norms.setdefault(term, []).append(norm)
    shares = gradient_shares(norms)
    return {
        f"diagnostics/gradient_{term}_{number}": share
        for term, of_buckets in shares.items()
        for number, share in enumerate(of_buckets)
    }


def _norms(part: set[int], estimated: Estimate, learner: Learner, settings: UpdateSettings) -> dict[str, float]:
    """Return the gradient norm of each loss term over these trajectories alone."""
    samples = train_samples(estimated, part, settings) if part else []
    seed = ("gradient_shares", settings.run_seed)
    samples, _ = add_factors(samples, learner, settings.objective, settings.micro_tokens)
    samples = add_step_statistics(samples, learner, settings.objective, settings.micro_tokens, seed)
    without_task = [_without_task(sample) for sample in samples]
    terms: dict[LossTerm, list[TrainSample]] = {"task": samples, "entropy": without_task, "kl": without_task}
    return {
        term: learner.gradient_norm(
            [
                pack_train([chosen[index] for index in micro])
                for micro in micro_batches([sample.sample for sample in chosen], settings.micro_tokens, learner.ranks)
            ],
            term,
        )
        for term, chosen in terms.items()
    }


def _without_task(sample: TrainSample) -> TrainSample:
    """Return the sample with advantages and factors 0 and no selected tokens."""
    selected, factors = (
        None if column is None else torch.zeros_like(column) for column in (sample.selected, sample.factors)
    )
    return replace(sample, advantages=torch.zeros_like(sample.advantages), selected=selected, factors=factors)


INFORMATION_PROMPTS = 8
"""Trajectories per measurement of information, which scores every pair of prompt and reasoning."""
GRADIENT_BUCKETS = 4
"""Quantiles of reward spread per measurement of gradients."""


class Diagnostics(Part):
    """Measurements every n steps that need passes of the model; 0 steps: never.

    `compares_groups`: the groups of a step are those that it trains on, so that their gradients can be compared.
    """

    def __init__(
        self,
        learner: Learner,
        settings: UpdateSettings,
        *,
        every: int,
        compares_groups: bool,
    ) -> None:
        self._learner, self._settings = learner, settings
        self._every, self._compares_groups = every, compares_groups

    def inspect(self, rollout: Rollout, estimate: Estimate | None) -> Metrics:
        if not is_due(self._every, rollout.number):
            return {}
        learner, settings = self._learner, self._settings
        metrics = mutual_information_metrics(rollout.groups, learner, INFORMATION_PROMPTS, settings.micro_tokens)
        if self._compares_groups and estimate is not None:
            metrics |= gradient_metrics(rollout.kept, estimate, learner, settings, GRADIENT_BUCKETS)
        return metrics


RATE_CUT = 0.5
"""Factor of the learning rate at each rollback, and at each spike with diagnose.answer adjust."""
MAX_ROLLBACKS = 3
"""Rollbacks of a run; later alarms only report."""
MIN_RATE_SCALE = 1 / 16
"""Factor below which spikes do not lower the learning rate further."""
SPIKES = frozenset({"gradient_spike"})
LOST_EXPLORATION = frozenset({"entropy_collapse", "echo_trap"})
"""Alarms that diagnose.answer adjust answers with a lower learning rate, and with higher entropy bonuses."""


class Rollback:
    """Restores the oldest regular checkpoint. The step count continues: steps that were undone stay in the metrics."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        learner: Learner,
        restore: Callable[[Path, State], None],
        *,
        at_most: int,
        on_restore: Sequence[Callable[[], None]] = (),
    ) -> None:
        """`restore` copies a checkpoint into the learner; `on_restore` are called after it. `at_most`: per run."""
        self.at_most, self._on_restore = at_most, on_restore
        self._checkpoints, self._learner, self._restore = checkpoints, learner, restore

    def go_back(self) -> int | None:
        """Return the step of the checkpoint; None if there is none yet. Later checkpoints are deleted.

        Otherwise the next rollback could restore what this one undid.
        """
        kept = self._checkpoints.regular()
        if not kept:
            return None
        self._restore(kept[0], replace(read_state(kept[0]), skipped_steps=self._learner.skipped_steps))
        self._checkpoints.drop_after(kept[0])
        for call in self._on_restore:
            call()
        return step_of(kept[0])


class Alarms(Part):
    """Looks for alarms in the records and reports each once; a `Rollback` may answer with an earlier checkpoint.

    With `explore_more` it also answers some alarms by a change of one coefficient, which the alarm's line records.

    The active alarms follow from the records, so a resumed run agrees.
    """

    name = "alarms"

    def __init__(
        self,
        folder: RunFolder,
        note: Callable[[str], None],
        settings: AlarmSettings,
        rollback: Rollback,
        explore_more: Callable[[], str | None] | None = None,
    ) -> None:
        """`note` prints a line. `explore_more`: raises the entropy bonuses; None leaves alarms unanswered."""
        self._explore_more = explore_more
        self._folder, self._note, self._settings, self._rollback = folder, note, settings, rollback
        self._steps: list[StepRecord] = []
        self._active: frozenset[str] = frozenset()
        self.rate_scale = 1.0
        """Factor of the learning rate, lowered by rollbacks."""
        self.rollbacks = 0
        self.watched_from = 0
        """Step of the last rollback; alarms look only at later steps."""

    def state(self) -> dict[str, float]:
        return {"rate_scale": self.rate_scale, "rollbacks": self.rollbacks, "watched_from": self.watched_from}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.rate_scale, self.rollbacks = state["rate_scale"], state["rollbacks"]
        self.watched_from = state["watched_from"]

    def adjust(self, settings: StepSettings) -> StepSettings:
        return replace(settings, rate_scale=self.rate_scale)

    async def begin(self, step: int) -> None:
        """Take in the steps that a resumed run has recorded, without reporting their alarms again."""
        self._steps, self._active = [], frozenset()
        for record in select(self._folder.read_records(), StepRecord):
            if record.step > self.watched_from:
                self._check(record)

    def after(self, record: StepRecord) -> None:
        raised = self._check(record)
        for alarm in raised:
            answer = self._answer(alarm)
            self._note(f"alarm: {alarm.message}{answer}")
            self._folder.append_alarm(record.step, f"{alarm.message}{answer}")
        if raised and self.rollbacks < self._rollback.at_most:
            self._roll_back(record.step)

    def _answer(self, alarm: Alarm) -> str:
        """Answer an alarm, if alarms are answered; return what changed, for its line."""
        if self._explore_more is None:
            return ""
        changed = None
        if alarm.kind in SPIKES and self.rate_scale > MIN_RATE_SCALE:
            self.rate_scale *= RATE_CUT
            changed = f"the learning rate is now multiplied by {self.rate_scale:g}"
        elif alarm.kind in LOST_EXPLORATION:
            changed = self._explore_more()
        return f"; {changed}" if changed else ""

    def _check(self, record: StepRecord) -> Sequence[Alarm]:
        """Take in one more step; return the alarms that it raises.

        Stored episodes are not the policy's, so their rewards and lengths raise none.
        """
        self._steps.append(record if record.source is EpisodeSource.PLAYED else replace(record, rollout={}))
        state = check_alarms(self._steps, self._active, self._settings)
        self._active = state.active
        return state.raised

    def _roll_back(self, step: int) -> None:
        restored = self._rollback.go_back()
        if restored is None:
            self._note("No checkpoint to roll back to yet; training continues.")
            return
        self.rate_scale, self.rollbacks, self.watched_from = RATE_CUT * self.rate_scale, self.rollbacks + 1, step
        self._steps, self._active = [], frozenset()
        self._note(f"Rolled back to step {restored}; the learning rate is now multiplied by {self.rate_scale:g}.")
