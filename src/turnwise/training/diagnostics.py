"""Measurements that cost passes of the model, taken every n steps: what the reasoning and the gradient depend on."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from turnwise.algos.diagnostics import (
    gradient_shares,
    information_metrics,
    measure_retrieval,
    mutual_information,
    reward_std_buckets,
)
from turnwise.algos.filters import group_std
from turnwise.core.samples import Learner, LossTerm, Needs, Sample, TrainSample
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.packing import micro_batches, pack_train
from turnwise.training.estimate import Estimate, score_samples
from turnwise.training.update import UpdateSettings, add_step_statistics, train_samples


def is_due(every: int, step: int) -> bool:
    """Return whether something that happens every so many steps happens at this one; 0: never."""
    return every > 0 and step % every == 0


def mutual_information_metrics(
    groups: Sequence[Group], learner: Learner, prompts: int, micro_tokens: int
) -> dict[str, float]:
    """Of the first turn of one member of each group: does what it says depend on what it was asked?

    Its reasoning is its thinking, or all it sampled where it did not think. Nothing where there are fewer than two.
    """
    members = [group.trajectories[0] for group in groups if group.trajectories[0].turns][:prompts]
    if len(members) < 2:
        return {}
    pairs = [_joined(prompt, reasoning) for reasoning in members for prompt in members]
    scores = score_samples(pairs, learner, Needs(logprobs=True), micro_tokens)["logprobs"]
    likelihoods = torch.stack([each.sum() for each in scores]).view(len(members), len(members))
    own = torch.arange(len(members))
    found = mutual_information(likelihoods, own)
    numbers: dict[tuple[int, ...], int] = {}
    same = torch.tensor([numbers.setdefault(each.turns[0].context_ids, len(numbers)) for each in members])
    metrics = information_metrics(found, measure_retrieval(likelihoods, own, same))
    return {f"diagnostics/{name}": value for name, value in metrics.items()}


def _joined(prompt: Trajectory, reasoning: Trajectory) -> Sample:
    """The prompt of one trajectory followed by the first reasoning of another, which is what is scored."""
    turn = reasoning.turns[0]
    thoughts = [span for span in turn.spans if span.name == "think"]
    said = turn.action_ids[: thoughts[0].end] if thoughts else turn.action_ids
    context = prompt.turns[0].context_ids
    mask = torch.tensor([False] * len(context) + [True] * len(said))
    return Sample(
        trajectory=0,
        ids=torch.tensor([*context, *said]),
        mask=mask,
        turn_ids=torch.where(mask, 0, -1),
        logprobs=torch.zeros(len(mask)),
        temperatures=torch.where(mask, turn.temperature, 1.0),
    )


def gradient_metrics(
    groups: Sequence[Group], estimated: Estimate, learner: Learner, settings: UpdateSettings, buckets: int
) -> dict[str, float]:
    """Shares of the task's, the entropy's and the KL's gradient norm by quantile of reward std; no step is taken."""
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
    samples = add_step_statistics(samples, learner, settings.objective, settings.micro_tokens, seed)
    without_task = [_without_task(each) for each in samples]
    terms: dict[LossTerm, list[TrainSample]] = {"task": samples, "entropy": without_task, "kl": without_task}
    return {
        term: learner.gradient_norm(
            [
                pack_train([chosen[index] for index in micro])
                for micro in micro_batches([each.sample for each in chosen], settings.micro_tokens)
            ],
            term,
        )
        for term, chosen in terms.items()
    }


def _without_task(sample: TrainSample) -> TrainSample:
    """The same without advantages and without the tokens that the loss treats apart."""
    selected = None if sample.selected is None else torch.zeros_like(sample.selected)
    return replace(sample, advantages=torch.zeros_like(sample.advantages), selected=selected)
