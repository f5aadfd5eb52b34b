"""Measurements that cost passes of the model, taken every n steps: what the reasoning and the gradient depend on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from turnwise.algos.diagnostics import (
    gradient_shares,
    information_metrics,
    mutual_information,
    retrieval,
    spread_buckets,
)
from turnwise.algos.filters import group_std
from turnwise.core.samples import Needs, Sample, TrainSample
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.packing import micro_batches, pack_train
from turnwise.training.estimate import Estimate, score_samples
from turnwise.training.learner import LocalLearner
from turnwise.training.update import UpdateSettings, prepare_step, train_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseSettings:
    information_every: int
    information_prompts: int
    gradients_every: int
    gradient_buckets: int

    def information_due(self, step: int) -> bool:
        return self.information_every > 0 and step % self.information_every == 0

    def gradients_due(self, step: int) -> bool:
        return self.gradients_every > 0 and step % self.gradients_every == 0


def information(groups: Sequence[Group], learner: LocalLearner, prompts: int, micro_tokens: int) -> dict[str, float]:
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
    metrics = information_metrics(found, retrieval(likelihoods, own, same))
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


def gradients(
    groups: Sequence[Group], estimated: Estimate, learner: LocalLearner, settings: UpdateSettings, buckets: int
) -> dict[str, float]:
    """Shares of the task's, the entropy's and the KL's gradient norm by quantile of reward std; no step is taken."""
    numbers = {id(each): number for number, group in enumerate(groups) for each in group.trajectories}
    returns = torch.tensor([each.total_reward for group in groups for each in group.trajectories])
    group_of_row = torch.tensor([number for number, group in enumerate(groups) for _ in group.trajectories])
    bucket_of_group = spread_buckets(group_std(returns, group_of_row, len(groups)), buckets).tolist()
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


def _norms(part: set[int], estimated: Estimate, learner: LocalLearner, settings: UpdateSettings) -> dict[str, float]:
    """The gradient norm of each term of the loss over these trajectories alone."""
    whole, kl_coef = learner.objective, learner.kl_coef
    samples = train_samples(estimated, part, settings) if part else []
    seed = ("gradient_shares", settings.run_seed)
    samples = prepare_step(samples, learner, settings.objective, settings.micro_tokens, seed)
    without_task = [_without_task(each) for each in samples]
    terms = {
        "task": (samples, 0.0, 0.0),
        "entropy": (without_task, whole.entropy_coef, 0.0),
        "kl": (without_task, 0.0, kl_coef),
    }
    norms = {}
    try:
        for term, (chosen, entropy_coef, weight) in terms.items():
            learner.objective = replace(whole, entropy_coef=entropy_coef, value_coef=0.0)
            learner.kl_coef = weight
            for micro in micro_batches([each.sample for each in chosen], settings.micro_tokens):
                learner.forward_backward(pack_train([chosen[index] for index in micro]))
            norms[term] = learner.gradient_norm()
    finally:
        learner.objective, learner.kl_coef = whole, kl_coef
    return norms


def _without_task(sample: TrainSample) -> TrainSample:
    """The same without advantages and without the tokens that the loss treats apart."""
    selected = None if sample.selected is None else torch.zeros_like(sample.selected)
    return replace(sample, advantages=torch.zeros_like(sample.advantages), selected=selected)
