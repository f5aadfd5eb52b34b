"""What a training step does, in plain loops: one forward of each context alone, with transformers' own attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from models_for_tests import random_model
from turnwise.core.trajectory import Group, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A sampled token, as a model sees it."""

    group: int
    trajectory: Trajectory
    segment: int
    """Number of its context among those of the trajectory."""
    turn: int
    place: int
    """Among the sampled tokens of its turn."""
    sampler_logprob: float
    logprob: Tensor
    entropy: Tensor
    hidden: Tensor  # [H] what it was sampled from


def plain_model(like: Any) -> Any:
    """A model of the same weights that shares none of turnwise's code."""
    model = random_model("llama", "eager")
    model.load_state_dict(like.state_dict())
    return model


def tokens_of(groups: Sequence[Group], model: Any) -> list[Token]:
    """All sampled tokens, in order."""
    return [
        token
        for number, group in enumerate(groups)
        for trajectory in group.trajectories
        for token in _tokens(number, trajectory, model)
    ]


def _tokens(group: int, trajectory: Trajectory, model: Any) -> list[Token]:
    found, segment = list[Token](), -1
    for first, turn in enumerate(trajectory.turns):
        if turn.extends:
            continue
        segment += 1
        ids: list[int] = []
        sampled: list[tuple[int, int, int]] = []  # index into ids, turn, place
        for number in range(first, len(trajectory.turns)):
            own = trajectory.turns[number]
            if number > first and not own.extends:
                break
            ids += own.context_ids
            sampled += [(len(ids) + place, number, place) for place in range(len(own.action_ids))]
            ids += own.action_ids
        hidden = model.base_model(torch.tensor([ids])).last_hidden_state[0]
        for index, number, place in sampled:
            own = trajectory.turns[number]
            logprobs = (model.lm_head(hidden[index - 1]) / own.temperature).log_softmax(dim=-1)
            found.append(
                Token(
                    group=group,
                    trajectory=trajectory,
                    segment=segment,
                    turn=number,
                    place=place,
                    sampler_logprob=own.action_logprobs[place],
                    logprob=logprobs[ids[index]],
                    entropy=-(logprobs.exp() * logprobs).sum(),
                    hidden=hidden[index - 1],
                )
            )
    return found


def less_the_mean(groups: Sequence[Group]) -> Callable[[Token], float]:
    """The advantage of dr_grpo: a trajectory's reward less its group's mean."""
    means = [sum(each.total_reward for each in group.trajectories) / len(group.trajectories) for group in groups]
    return lambda token: token.trajectory.total_reward - means[token.group]


def rewards_to_come(token: Token) -> float:
    """From the token's turn to the end."""
    return sum(token.trajectory.turn_rewards[token.turn :])


def clipped_loss(ratio: Tensor, advantage: float, low: float = 0.2, high: float = 0.28) -> Tensor:
    """The loss of ppo."""
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high))


def gradients_of(loss: Tensor, model: Any) -> dict[str, Tensor]:
    """By the names that `learners_for_tests.gradients` gives."""
    loss.backward()
    return {
        f"policy.{name}": torch.zeros_like(each) if each.grad is None else each.grad
        for name, each in model.named_parameters()
    }


def assert_same_gradients(ours: dict[str, Tensor], by_hand: dict[str, Tensor], tolerance: float = 1e-4) -> None:
    """Equal up to a share of the length of all of them together."""
    length = torch.stack([value.norm() for value in by_hand.values()]).norm()
    assert length > 0
    for name, value in by_hand.items():
        assert (ours[name] - value).norm() <= tolerance * length, name
