"""Diagnostics of a run: alarms and rollback, and measurements every n steps that need passes of the model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from turnwise.algos.alarms import AlarmSettings, check_alarms
from turnwise.algos.diagnostics import (
    gradient_shares,
    information_metrics,
    measure_retrieval,
    mutual_information,
    reward_std_buckets,
)
from turnwise.algos.filters import group_std
from turnwise.core.learner import Learner, LossTerm, Needs
from turnwise.core.samples import Sample, TrainSample
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.packing import micro_batches, pack_train
from turnwise.training.checkpoints import Checkpoints, State, read_state
from turnwise.training.estimate import Estimate, score_samples
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
    scores = score_samples(pairs, learner, Needs(logprobs=True), micro_tokens)["logprobs"]
    likelihoods = torch.stack([each.sum() for each in scores]).view(len(members), len(members))
    own = torch.arange(len(members))
    found = mutual_information(likelihoods, own)
    numbers: dict[tuple[int, ...], int] = {}
    same = torch.tensor([numbers.setdefault(each.turns[0].context_ids, len(numbers)) for each in members])
    metrics = information_metrics(found, measure_retrieval(likelihoods, own, same))
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
        logprobs=torch.zeros(len(mask)),
        temperatures=torch.where(mask, turn.temperature, 1.0),
    )


def gradient_metrics(
    groups: Sequence[Group], estimated: Estimate, learner: Learner, settings: UpdateSettings, buckets: int
) -> dict[str, float]:
    """Return shares of the gradient norm of each loss term by quantile of the groups' reward std. Takes no step."""
    numbers = {id(each): number for number, group in enumerate(groups) for each in group.trajectories}
    returns = torch.tensor([each.total_reward for group in groups for each in group.trajectories])
    group_of_row = torch.tensor([number for number, group in enumerate(groups) for _ in group.trajectories])
    bucket_of_group = reward_std_buckets(group_std(returns, group_of_row, len(groups)), buckets).tolist()
    members: list[set[int]] = [set() for _ in range(buckets)]
    for index, trajectory in enumerate(estimated.trajectories):
        members[bucket_of_group[numbers[id(trajectory)]]].add(index)
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
    without_task = [_without_task(each) for each in samples]
    terms: dict[LossTerm, list[TrainSample]] = {"task": samples, "entropy": without_task, "kl": without_task}
    return {
        term: learner.gradient_norm(
            [
                pack_train([chosen[index] for index in micro])
                for micro in micro_batches([each.sample for each in chosen], settings.micro_tokens, learner.ranks)
            ],
            term,
        )
        for term, chosen in terms.items()
    }


def _without_task(sample: TrainSample) -> TrainSample:
    """Return the sample with advantages and factors 0 and no selected tokens."""
    selected, factors = (None if each is None else torch.zeros_like(each) for each in (sample.selected, sample.factors))
    return replace(sample, advantages=torch.zeros_like(sample.advantages), selected=selected, factors=factors)


RATE_CUT = 0.5
"""Factor of the learning rate at each rollback."""


class AlarmWatcher:
    """Look for alarms in every row of the metrics. Its state follows from the rows: a resumed run agrees."""

    def __init__(self, report: Callable[[int, str], None], settings: AlarmSettings | None = None) -> None:
        self._report, self._settings = report, settings or AlarmSettings()
        self._rows: list[dict[str, Any]] = []
        self._active: frozenset[str] = frozenset()

    def begin(self, rows: Sequence[dict[str, Any]], state: State) -> None:
        """Take in the rows that a resumed run has recorded, without reporting their alarms again."""
        self._rows, self._active = [], frozenset()
        for row in rows:
            if "rollout/success" in row and row["step"] > state.watched_from:
                self._rows.append(row | dict.fromkeys(row.get("nonfinite", ()), math.nan))
                self._active = check_alarms(self._rows, self._active, self._settings).active

    def raises_alarm(self, row: dict[str, Any]) -> bool:
        """Take in one more row and report the alarms that it raises."""
        self._rows.append(row)
        found = check_alarms(self._rows, self._active, self._settings)
        self._active = found.active
        for alarm in found.raised:
            self._report(row["step"], alarm.message)
        return bool(found.raised)


def roll_back(state: State, checkpoints: Checkpoints, restore: Callable[[str, State], None]) -> State | None:
    """Restore the oldest regular checkpoint and halve the learning rate; None where there is no checkpoint yet.

    The step count continues: the steps that were undone stay in the metrics. Their checkpoints are deleted, so that the
    next rollback does not lead to them.
    """
    kept = checkpoints.regular()
    if not kept:
        return None
    restore(str(kept[0]), replace(read_state(kept[0]), skipped_steps=state.skipped_steps))
    checkpoints.drop_after(kept[0])
    return replace(
        state, rate_scale=RATE_CUT * state.rate_scale, rollbacks=state.rollbacks + 1, watched_from=state.step
    )
