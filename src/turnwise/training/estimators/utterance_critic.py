"""Train the utterance critic: TD over turns for Q, the policy's or the data's actions for V, and slow target copies."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.algos.archer import compute_q_targets, utterance_value_loss
from turnwise.algos.stats import STD_FLOOR
from turnwise.core.samples import Batch, Sample, on_device
from turnwise.core.trajectory import Trajectory
from turnwise.data.packing import micro_batches, pack
from turnwise.data.samples import build_samples
from turnwise.models.critic import UtteranceCritic, UtteranceValues
from turnwise.models.forward import batch_attention
from turnwise.training.optimizer import Optimizer
from turnwise.training.skipped_steps import SkipMonitor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """All D utterances of some trajectories, in order: the next state of one is the state of the one after it."""

    samples: list[Sample]
    rewards: Tensor  # [D]
    discounts: Tensor  # [D] of what follows: gamma; 1 after a summary, which is not an environment turn; 0 at the end
    has_target: Tensor  # [D] bool, False where an episode was cut short: its next state is not known
    complete: Tensor  # [D] bool, False in all of an episode that was cut short: its return is not known

    def discounted_returns(self, q_values: Tensor | None = None) -> Tensor:
        """Return the rewards that followed each decision, discounted by turn. [D]

        Where an episode was cut short, the return is the estimate in `q_values` [D]; 0 after it without them.
        """
        returns, after = torch.zeros_like(self.rewards), 0.0
        for index in reversed(range(len(returns))):
            after = float(self.rewards[index] + self.discounts[index] * after)
            if q_values is not None and not self.has_target[index]:
                after = float(q_values[index])
            returns[index] = after
        return returns


def build_decisions(trajectories: Sequence[Trajectory], gamma: float, *, bootstrap: bool) -> Decisions:
    """Build the decisions of whole trajectories, every turn of which has sampled tokens.

    `bootstrap`: the state after a token or time limit has a value, which is unknown; otherwise it is 0. The state after
    the limit of an imported episode always has one.
    """
    rewards, discounts = list[float](), list[float]()
    has_target, complete = list[bool](), list[bool]()
    for trajectory in trajectories:
        ended = not trajectory.status.continues(bootstrap=bootstrap)
        rewards += trajectory.turn_rewards
        discounts += [1.0 if turn.is_summary else gamma for turn in trajectory.turns[:-1]] + [0.0]
        has_target += [True] * (len(trajectory.turns) - 1) + [ended]
        complete += [ended] * len(trajectory.turns)
    return Decisions(
        samples=build_samples(trajectories),
        rewards=torch.tensor(rewards),
        discounts=torch.tensor(discounts),
        has_target=torch.tensor(has_target),
        complete=torch.tensor(complete),
    )


class UtteranceCriticLearner:
    """Holds the online critic, its target copy and its optimizer.

    The target's averages are float32, since bfloat16 would round small steps away; they are the target's own weights
    where these are float32. Frozen parameters, such as a vision tower or the base of an adapter, are not averaged.
    """

    def __init__(
        self,
        critic: UtteranceCritic,
        optimizer: Optimizer,
        *,
        target_rate: float,
        expectile: float | None,
        micro_tokens: int,
    ) -> None:
        """`expectile`: V learns this expectile of Q over the stored utterances (IQL).

        None: V learns the mean of Q over utterances that the policy samples (ArCHer, AWAC).
        """
        self.critic, self.optimizer = critic, optimizer
        self.target_rate, self.expectile, self.micro_tokens = target_rate, expectile, micro_tokens
        self.target = critic.frozen_copy()
        self._trained_indices = [
            index for index, parameter in enumerate(critic.parameters()) if parameter.requires_grad
        ]
        self.averages = [parameter.detach().float() for parameter in self._trained(self.target)]
        self.device = self.averages[0].device
        self._skips = SkipMonitor()

    def _trained(self, critic: UtteranceCritic) -> list[Tensor]:
        """Return the parameters of either critic that are trained in the online one."""
        parameters = list(critic.parameters())
        return [parameters[index] for index in self._trained_indices]

    @property
    def std(self) -> float:
        """Standard deviation of returns that the critic's outputs are multiplied by."""
        return float(self.critic.unit[1])

    def fit_unit(self, returns: Tensor) -> None:
        """Take mean and standard deviation of these returns as the critic's unit. Only the first that differ count."""
        if not len(returns):
            return
        spread = returns.std(correction=0)
        if self.critic.unit.tolist() == [0.0, 1.0] and spread > STD_FLOOR:
            for critic in (self.critic, self.target):
                critic.unit.copy_(torch.stack([returns.mean(), spread]))

    @torch.no_grad()
    def estimate_values(self, samples: Sequence[Sample], *, by_target: bool = False) -> UtteranceValues:
        """Return both critics' estimates of all utterances of the samples, in their order."""
        critic = self.target if by_target else self.critic
        total = sum(len(utterance_lengths(sample)) for sample in samples)
        q, v = torch.zeros(total, 2), torch.zeros(total, 2)
        for batch, positions, rows in self._parts(samples):
            with batch_attention(self.critic.trunk, batch):
                values = critic(batch, *positions)
            q[rows], v[rows] = values.q.cpu(), values.v.cpu()
        return UtteranceValues(q=q, v=v)

    def update(self, played: Decisions, fresh: Sequence[Sample], states: Sequence[int], step: int) -> dict[str, float]:
        """Take one optimizer step and move the target. Returns metrics.

        Q learns from what was played. V learns from `fresh`, utterances that the policy sampled at the states of the
        played decisions `states`, and not at all without any; with an expectile, from what was played. Fresh utterances
        pass through the target only: the online critic reads V of their states in the played trajectories.
        """
        count = len(played.rewards)
        estimates = self.estimate_values([*played.samples, *fresh], by_target=True)
        next_values = torch.cat([estimates.v[1:count], torch.zeros(1, 2)])
        q_targets = compute_q_targets(played.rewards, played.discounts, next_values)
        q_weights = played.has_target / played.has_target.sum().clamp(min=1)
        chosen = torch.tensor(states if self.expectile is None else range(count), dtype=torch.long)
        v_targets, v_weights = torch.zeros_like(q_targets), torch.zeros(count)
        v_targets[chosen] = estimates.q[count:] if self.expectile is None else estimates.q[:count]
        v_weights[chosen] = 1 / max(1, len(chosen))
        losses = self._backward(played.samples, q_targets, q_weights, v_targets, v_weights)
        norm, _ = self.optimizer.step(step)
        self.move_target()
        metrics = losses | {"utterance_critic_grad_norm": norm}
        self._skips.add(metrics, step + 1, lambda: "They are of the critic of utterances: lower critic.learning_rate.")
        return metrics

    def _backward(
        self, samples: Sequence[Sample], q_targets: Tensor, q_weights: Tensor, v_targets: Tensor, v_weights: Tensor
    ) -> dict[str, float]:
        """Accumulate the gradients of the weighted losses: targets [D, 2], weights [D]. Returns both losses.

        They are in units of the variance of returns: 1 is that of a constant.
        """
        q_loss = v_loss = 0.0
        q_weights, v_weights = q_weights / self.std**2, v_weights / self.std**2
        for batch, positions, rows in self._parts(samples):
            columns = (column[rows].to(self.device) for column in (q_targets, q_weights, v_targets, v_weights))
            part_q_targets, part_q_weights, part_v_targets, part_v_weights = columns
            with batch_attention(self.critic.trunk, batch):
                values = self.critic(batch, *positions)
                q_term = (part_q_weights[:, None] * (values.q - part_q_targets).square()).sum()
                v_losses = utterance_value_loss(part_v_targets - values.v, self.expectile)
                v_term = (part_v_weights[:, None] * v_losses).sum()
                (q_term + v_term).backward()
            q_loss, v_loss = q_loss + float(q_term.detach()), v_loss + float(v_term.detach())
        return {"q_loss": q_loss, "v_loss": v_loss}

    def _parts(self, samples: Sequence[Sample]) -> Iterator[tuple[Batch, tuple[Tensor, Tensor], Tensor]]:
        """Yield micro-batches, the packed positions of their utterances, and which rows these are among all."""
        counts = [len(utterance_lengths(sample)) for sample in samples]
        ends = list(itertools.accumulate(counts))
        for part in micro_batches(samples, self.micro_tokens):
            batch = pack([samples[index] for index in part])
            order = [part[index] for index in batch.order]
            rows = torch.cat([torch.arange(ends[index] - counts[index], ends[index]) for index in order])
            batch = on_device(batch, self.device)
            yield batch, utterance_positions([samples[index] for index in order], batch), rows

    @torch.no_grad()
    def move_target(self) -> None:
        """Polyak averaging: target <- (1 - rate) target + rate online."""
        weights = [parameter.float() for parameter in self._trained(self.critic)]
        torch._foreach_lerp_(self.averages, weights, self.target_rate)
        torch._foreach_copy_(self._trained(self.target), self.averages)

    def target_distance(self) -> float:
        """Return |target - online| / |online| over the trained parameters."""
        online = [parameter.detach().float() for parameter in self._trained(self.critic)]
        apart = torch.nn.utils.get_total_norm(torch._foreach_sub(self.averages, online))
        return float(apart / torch.nn.utils.get_total_norm(online))

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint: both critics and the optimizer."""
        return {
            **{f"critic.{name}": value for name, value in self.critic.state_dict().items()},
            **{f"average.{index}": value for index, value in zip(self._trained_indices, self.averages, strict=True)},
            **{f"optimizer.{name}": value for name, value in self.optimizer.tensors().items()},
        }

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        parts: dict[str, dict[str, Tensor]] = {"critic": {}, "average": {}, "optimizer": {}}
        for key, value in tensors.items():
            part, _, name = key.partition(".")
            parts[part][name] = value
        for critic in (self.critic, self.target):
            critic.load_state_dict(parts["critic"])
        for index, average in zip(self._trained_indices, self.averages, strict=True):
            average.copy_(parts["average"][str(index)])
        torch._foreach_copy_(self._trained(self.target), self.averages)
        self.optimizer.load_tensors(parts["optimizer"])


def utterance_lengths(sample: Sample) -> list[int]:
    """Return the number of tokens of each utterance, which is a turn with sampled tokens."""
    lengths: list[int] = sample.turn_ids[sample.mask].unique_consecutive(return_counts=True)[1].tolist()
    return lengths


def utterance_positions(samples: Sequence[Sample], batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the packed positions before the first token and of the last token of each utterance. [D] each

    `samples` are in the order of the packed rows.
    """
    turns = torch.cat([sample.turn_ids[sample.mask] for sample in samples])
    owners = torch.repeat_interleave(torch.tensor(batch.counts))
    changes = (turns[1:] != turns[:-1]) | (owners[1:] != owners[:-1])
    edge = torch.ones(1, dtype=torch.bool)
    starts, ends = torch.cat([edge, changes]), torch.cat([changes, edge])
    device = batch.sources.device
    return batch.sources[starts.to(device)], batch.sources[ends.to(device)] + 1
