"""Contract tests of the parts of a training step: learner, source and estimator."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.record.steps import IdleReason
from turnwise.testing.rules import expect, is_number

if TYPE_CHECKING:  # environments and tools are checked without torch
    from torch import Tensor

    from turnwise.core.learner import Learner, Needs, StepSettings
    from turnwise.core.samples import Batch, TrainBatch
    from turnwise.core.trajectory import Group
    from turnwise.training.step import Estimate, Estimator, Rollout, Source

LEARNER_TOLERANCE = 1e-6
"""Difference of weights after equal steps: passes over the same batches may round differently."""


def check_learner(
    make: "Callable[[], Learner]",
    batches: "Sequence[Batch]",
    train_batches: "Sequence[TrainBatch]",
    *,
    needs: "Needs",
    settings: "StepSettings",
    folder: Path,
) -> None:
    """Check a `Learner`. `make` returns learners of equal weights; `needs` are scores that it can compute.

    `folder`: an empty one, for its state.
    """
    learner = make()
    learner.begin_step(settings)
    before = _copy_weights(learner)
    _check_scores(learner, batches, needs)
    expect(learner.gradient_norm(train_batches, "task") >= 0, "a norm is at least 0")
    metrics = learner.forward_backward(train_batches)
    expect(len(metrics) == len(train_batches), "forward_backward returns metrics for each batch")
    expect(all("tokens" in row for row in metrics), "the metrics of a batch have its number of tokens")
    expect(_difference(before, _copy_weights(learner)) == 0, "only step changes the weights")
    taken = learner.step()
    expect(all(map(is_number, taken.values())), "the metrics of a step are finite numbers")
    after = _copy_weights(learner)
    expect(_difference(before, after) > 0, "step changes the weights")
    learner.check_finite("after a step")
    learner.save_state(folder)
    resumed = make()
    resumed.load_weights(_Weights(after))
    resumed.load_state(folder, skipped_steps=learner.skipped_steps)
    expect(_difference(after, _copy_weights(resumed)) == 0, "load_weights copies all weights")
    for trained in (learner, resumed):
        trained.begin_step(settings)
        trained.forward_backward(train_batches)
        trained.step()
    difference = _difference(_copy_weights(learner), _copy_weights(resumed))
    expect(difference <= LEARNER_TOLERANCE, f"a resumed learner takes the same step; weights differ by {difference:g}")


def _check_scores(learner: "Learner", batches: "Sequence[Batch]", needs: "Needs") -> None:
    scores = learner.score(batches, needs)
    expect(len(scores) == len(batches), "score returns scores for each batch")
    for batch, row in zip(batches, scores, strict=True):
        for name in ("policy_logprobs", "entropy", "values", "ref_logprobs"):
            values = getattr(row, name)
            expect((values is not None) == getattr(needs, name), f"{name} is returned if it is requested, else None")
            expect(values is None or values.shape == batch.targets.shape, f"{name} has a value per sampled token")


class _Weights:
    def __init__(self, parameters: "Mapping[str, Tensor]") -> None:
        self._parameters = parameters

    def named_parameters(self) -> "list[tuple[str, Tensor]]":
        return list(self._parameters.items())


def _copy_weights(learner: "Learner") -> "dict[str, Tensor]":
    return {name: parameter.detach().clone() for name, parameter in learner.weights().named_parameters()}


def _difference(one: "Mapping[str, Tensor]", other: "Mapping[str, Tensor]") -> float:
    expect(one.keys() == other.keys(), "weights keep their names")
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def check_source(make: "Callable[[], Source]", steps: int = 2) -> None:
    """Check a `Source` over the first steps of a run. `make` returns sources of equal settings and seeds."""
    first, again = (asyncio.run(_collect(make(), steps)) for _ in range(2))
    for number, rollout in enumerate(first, start=1):
        expect(rollout.number == number, f"the groups after {number - 1} steps are those of step {number}")
        _check_rollout(rollout)
    drawn = [[[group.task for group in rollout.groups] for rollout in run] for run in (first, again)]
    expect(drawn[0] == drawn[1], "a step draws the same tasks in every run of equal settings")


async def _collect(source: "Source", steps: int) -> "list[Rollout]":
    """Return the rollouts of the first steps; a source that is also a part is started and closed as in the loop."""
    part: Any = source if hasattr(source, "begin") else None
    if part is not None:
        await part.begin(0)
    try:
        rollouts = []
        for step in range(steps):
            rollouts.append(await source.groups(step))
            if part is not None:
                await part.finish(step + 1)
        return rollouts
    finally:
        if part is not None:
            await part.close()


def _check_rollout(rollout: "Rollout") -> None:
    expect(len(rollout.groups) > 0, "a rollout has groups; a source without any raises")
    for group in rollout.groups:
        _check_group(group)
    tasks = [(group.task.env, group.task.seed) for group in rollout.groups]
    kept = [(group.task.env, group.task.seed) for group in rollout.kept]
    expect(all(task in tasks for task in kept), "the groups to train on are among those of the rollout")
    expect((rollout.empty is None) == bool(rollout.kept), "a rollout that keeps no group says why, and only then")
    expect(0 <= rollout.kept_share <= 1, f"kept_share is a share, not {rollout.kept_share}")
    expect(is_number(rollout.rate_scale) and rollout.rate_scale >= 0, "rate_scale is a factor of 0 or more")
    metrics = rollout.metrics()
    expect(all(map(is_number, metrics.values())), f"the metrics of a rollout are finite numbers: {metrics}")


def _check_group(group: "Group") -> None:
    expect(len(group.trajectories) > 0, "a group has members")
    for trajectory in group.trajectories:
        expect(trajectory.task == group.task, "the members of a group have its task")
        expect(all(map(is_number, trajectory.turn_rewards)), f"rewards are finite: {trajectory.turn_rewards}")


def check_estimator(make: "Callable[[], Estimator[Any]]", rollout: "Rollout", learner: "Learner") -> None:
    """Check an `Estimator` on the groups of a step. `make` returns estimators of equal settings and seeds."""
    estimator, before = make(), _copy_weights(learner)
    expect(bool(estimator.setting), "setting names what chose the estimator")
    estimates = [_estimate(made, rollout, learner) for made in (estimator, make())]
    expect(_difference(before, _copy_weights(learner)) == 0, "an estimator leaves the policy's weights to the update")
    first, second = estimates
    if isinstance(first, IdleReason) or isinstance(second, IdleReason):
        expect(first == second, "equal estimators give equal reasons")
        raise AssertionError(f"the rollout gives no estimate ({first}): give one to train on")
    _check_estimate(first, rollout)
    equal = all(bool((one == two).all()) for one, two in zip(first.advantages, second.advantages, strict=True))
    expect(equal, "equal estimators give equal advantages")


def _estimate(estimator: "Estimator[Any]", rollout: "Rollout", learner: "Learner") -> "Estimate | IdleReason":
    sampled = asyncio.run(estimator.sample(rollout))
    return estimator.estimate(rollout, sampled, learner)


def _check_estimate(estimate: "Estimate", rollout: "Rollout") -> None:
    samples = estimate.samples
    expect(len(samples) > 0, "an estimate has samples; without any, return an IdleReason")
    expect(len(estimate.group_ids) == len(estimate.trajectories), "each trajectory has a group")
    owners = {sample.trajectory for sample in samples}
    expect(owners <= set(range(len(estimate.trajectories))), "each sample is of one of the trajectories")
    played = [trajectory for group in rollout.groups for trajectory in group.trajectories]
    own = estimate.of_utterances or all(trajectory in played for trajectory in estimate.trajectories)
    expect(own, "the trajectories are those of the rollout")
    for name in ("old_logprobs", "advantages", "ref_logprobs", "old_values", "returns"):
        column = getattr(estimate, name)
        expect(column is not None or name not in ("old_logprobs", "advantages"), f"{name} is given")
        for sample, values in zip(samples, column or [], strict=column is not None):
            expect(len(values) == len(sample.ids), f"{name} has a value per token of each sample")
            expect(bool(values[sample.mask].isfinite().all()), f"{name} is finite for every sampled token")
    outside = [values[~sample.mask] for sample, values in zip(samples, estimate.advantages, strict=True)]
    expect(not any(bool(values.any()) for values in outside), "tokens that were not sampled have advantage 0")
    for name in ("loss_masks", "advantage_masks"):
        for sample, mask in zip(samples, getattr(estimate, name), strict=True):
            expect(len(mask) == int(sample.mask.sum()), f"{name} has an entry per sampled token")
    expect((estimate.returns is None) == (estimate.old_values is None), "returns come with the critic's old values")
    expect(all(map(is_number, estimate.metrics.values())), f"metrics are finite numbers: {estimate.metrics}")
    expect(is_number(estimate.rate_scale) and estimate.rate_scale >= 0, "rate_scale is a factor of 0 or more")
