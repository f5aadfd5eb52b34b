"""The whole algorithm in one file: read this first.

    python -m turnwise.recipes.reference              # the bandit; prints a line per step
    python -m turnwise.recipes.reference frozen_lake  # five turns per episode

StarPO (Wang et al. 2025, "RAGEN") optimises whole episodes, over all of their turns:

    rollout   run a group of episodes with the current policy from each of a few start states
    update    make every sampled token likelier if its episode earned more than the group's mean, and less likely if it
              earned less

This file leaves out what makes turnwise fast (a KV cache that is kept across turns, packing, shared prompts, episodes
that do not wait for each other) and general (other advantages and losses, critics, context modes, failures, run
folders). A test runs the same episodes and computes the same gradients with the rest of the package.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from turnwise.core.protocols import Env
from turnwise.core.random_streams import address, random_stream
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Stop
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.render.renderer import Renderer
from turnwise.training.warmup import load_warmed_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    env: str
    steps: int
    groups: int = 16
    """Start states per step."""
    group_size: int = 16
    """Episodes per start state."""
    max_new_tokens: int = 32
    """Largest number of sampled tokens per turn."""
    format_penalty: float = 0.1
    """Subtracted for each turn with an invalid answer."""
    divide_by_std: bool = True
    """True: GRPO. False: Dr. GRPO, for rare rewards; see `group_advantages`."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    mini_batch: int = 128
    """Episodes per optimizer step. An update takes several steps on the tokens of one rollout."""
    learning_rate: float = 1e-3
    max_grad_norm: float = 1.0
    warmup_steps: int = 60
    """Steps of supervised warm-up on random play; see `turnwise.training.warmup`."""
    seed: int = 0


PRESETS = {
    "bandit": Settings(env="bandit", steps=20, max_new_tokens=24, divide_by_std=False),
    "frozen_lake": Settings(env="frozen_lake", steps=20),
}


@dataclass(slots=True, kw_only=True)
class Episode:
    """A trajectory while it is collected, as one row of token ids:

        ids               s s u u a a u u a a     system, user, action, user, action
        sampled           0 0 0 0 1 1 0 0 1 1     loss mask: only sampled tokens are trained
        sampler_logprobs  . . . . p p . . p p     of the policy that sampled them

    Sampled ids are never decoded and encoded again for training: the tokenizer might split the text differently, and
    the log-probabilities would belong to other tokens.
    """

    key: EpisodeKey
    env: Env
    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    sampler_logprobs: list[float] = field(default_factory=list)
    reward: float = 0.0
    over: bool = False
    success: bool = False

    def add_context(self, ids: Sequence[int]) -> None:
        """Append tokens that the policy reads: the prompt, an observation, the chat template around them."""
        self.ids += ids
        self.sampled += [False] * len(ids)
        self.sampler_logprobs += [0.0] * len(ids)

    def add_sampled(self, token: int, logprob: float) -> None:
        """Append a token that the policy sampled."""
        self.ids.append(token)
        self.sampled.append(True)
        self.sampler_logprobs.append(logprob)

    def next_random(self) -> float:
        """Return the random number in (0, 1) of the next token: SplitMix64 of the episode's key and the token's index.

        So an episode does not depend on what else is in the batch, and equal seeds give equal runs.
        """
        state = (self.key.address + (sum(self.sampled) + 1) * 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        return ((state ^ state >> 31) >> 41 & 2**23 - 1) / 2**23 + 2**-24


# ---------------------------------------------------------------------------------------------------- rollout stage


async def roll_out(loaded: LoadedModel, spec: EnvSpec, settings: Settings, step: int) -> list[list[Episode]]:
    """Return groups of finished episodes. Turns run in lock-step: all running episodes sample at the same time."""
    renderer = Renderer(loaded.tokenizer, loaded.stop_ids)
    groups = [start_group(spec, settings, step, number) for number in range(settings.groups)]
    running = [episode for group in groups for episode in group]
    for episode in running:
        observation = await episode.env.start()
        episode.add_context(renderer.start(observation.messages, observation.tools, observation.tools_in_words))
    while running:
        sizes = [len(episode.ids) for episode in running]
        sample_turn(loaded.model, running, settings.max_new_tokens, renderer.stop_ids)
        for episode, before in zip(running, sizes, strict=True):
            await step_env(episode, episode.ids[before:], renderer, settings.format_penalty)
        running = [episode for episode in running if not episode.over]
    return groups


def start_group(spec: EnvSpec, settings: Settings, step: int, number: int) -> list[Episode]:
    """Create a group. Members share the task and its start state; sampling and later randomness differ."""
    seed = seed_for("train", address("task", settings.seed, step, number) % SEEDS_PER_SPLIT)
    task = Task(env=spec.name, params=spec.check_params({}), seed=seed)
    return [
        Episode(
            key=EpisodeKey(run_seed=settings.seed, round=step, task=task, member=member),
            env=spec.make(task, member),
        )
        for member in range(settings.group_size)
    ]


@torch.no_grad()
def sample_turn(model: Any, episodes: Sequence[Episode], max_new_tokens: int, stop_ids: frozenset[int]) -> None:
    """Sample one turn of every episode, in one padded batch, one token at a time."""
    longest = max(len(episode.ids) for episode in episodes)
    padding = [longest - len(episode.ids) for episode in episodes]
    # Padded on the left, so that the last column is the last token of every episode.
    ids = torch.tensor([[0] * pad + episode.ids for pad, episode in zip(padding, episodes, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
    unfinished, cache = list(enumerate(episodes)), None
    for _ in range(max_new_tokens):
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1)
        logprobs, cache = output.logits[:, -1].log_softmax(dim=-1), output.past_key_values
        tokens = torch.zeros(len(episodes), 1, dtype=torch.long)
        for row, episode in unfinished:
            tokens[row] = draw(logprobs[row], episode.next_random())
            episode.add_sampled(int(tokens[row]), float(logprobs[row, tokens[row]]))
        unfinished = [(row, episode) for row, episode in unfinished if episode.ids[-1] not in stop_ids]
        if not unfinished:
            break
        # Finished rows continue with tokens that are ignored, because a batch is a rectangle.
        ids, mask = tokens, torch.cat([mask, torch.ones_like(tokens)], dim=1)


def draw(logprobs: Tensor, number: float) -> int:
    """Return the token at which the cumulative probability exceeds `number`. logprobs: [V]"""
    cumulative = logprobs.exp().cumsum(dim=0)  # its last value is 1 up to rounding, so `number` is scaled to it
    return int(torch.searchsorted(cumulative, number * cumulative[-1], right=True))


async def step_env(episode: Episode, action: Sequence[int], renderer: Renderer, format_penalty: float) -> None:
    """Step the environment with the sampled action."""
    stop = Stop.EOS if action[-1] in renderer.stop_ids else Stop.LENGTH
    result = await episode.env.step(renderer.parse(action, stop).message)
    episode.reward += result.reward - (format_penalty if result.invalid else 0.0)
    episode.over, episode.success = result.over, result.success
    if not episode.over:
        episode.add_context(renderer.extend(result.messages, stop))


# ----------------------------------------------------------------------------------------------------- update stage


def group_advantages(rewards: Tensor, divide_by_std: bool) -> Tensor:
    """Return each reward minus its group's mean. rewards: [groups, members]

    The group's mean is the baseline of this start state, so no critic is needed. Dividing by the group's standard
    deviation (GRPO, Shao et al. 2024) gives hard and easy start states the same weight. If a large reward is rare, that
    misleads: in most groups it does not occur, and a small, certain reward then looks like the best one. Without the
    division (Dr. GRPO, Liu et al. 2025) the size of the reward counts.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    spread = rewards.std(dim=1, keepdim=True, correction=min(1, rewards.shape[1] - 1))  # a group of one: 0, not NaN
    return centred / (spread + 1e-6) if divide_by_std else centred


def policy_loss(model: Any, episodes: Sequence[Episode], advantages: Sequence[float], settings: Settings) -> Tensor:
    """Return PPO's clipped loss (Schulman et al. 2017), averaged over all sampled tokens of these episodes.

    ratio = pi(token) / pi_old(token), where pi_old sampled it. The objective min(ratio A, clip(ratio) A) has no
    gradient once the ratio has left the interval in the advantage's direction: the samples say little about a policy
    that far from the one that sampled them.
    """
    longest = max(len(episode.ids) for episode in episodes)
    # Padded on the right: attention is causal, so no token sees padding and no mask is needed.
    ids = torch.tensor([episode.ids + [0] * (longest - len(episode.ids)) for episode in episodes])
    sampled = torch.zeros(ids.shape, dtype=torch.bool)
    for row, episode in enumerate(episodes):
        sampled[row, : len(episode.ids)] = torch.tensor(episode.sampled)
    hidden = model.model(ids).last_hidden_state
    # A token was sampled from the hidden state one position earlier. [M, ...] for M sampled tokens.
    logits = model.lm_head(hidden[:, :-1][sampled[:, 1:]])
    policy_logprobs = logits.log_softmax(dim=-1).gather(1, ids[sampled][:, None])[:, 0]
    pairs = (pair for episode in episodes for pair in zip(episode.sampler_logprobs, episode.sampled, strict=True))
    old_logprobs = torch.tensor([logprob for logprob, trained in pairs if trained])
    advantage = torch.tensor(advantages).repeat_interleave(sampled.sum(dim=1))
    ratio = (policy_logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


def make_optimizer(model: Any, settings: Settings) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)


def update(
    model: Any,
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Sequence[Episode]],
    settings: Settings,
    step: int,
) -> float:
    """Train one epoch in mini-batches; return the mean loss."""
    episodes = [episode for group in groups for episode in group]
    # In float64, so that equal rewards give exactly 0: float32 rounding of 1e-8 matters beside an epsilon of 1e-6.
    rewards = torch.tensor([[episode.reward for episode in group] for group in groups], dtype=torch.float64)
    advantages = group_advantages(rewards, settings.divide_by_std).flatten().tolist()
    order = list(range(len(episodes)))
    random_stream("mini_batches", settings.seed, step, 0).shuffle(order)
    losses = []
    for start in range(0, len(order), settings.mini_batch):
        part = order[start : start + settings.mini_batch]
        loss = policy_loss(model, [episodes[i] for i in part], [advantages[i] for i in part], settings)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return sum(losses) / len(losses)


# ------------------------------------------------------------------------------------------------------- both stages


def start_policy(spec: EnvSpec, settings: Settings) -> LoadedModel:
    """Load a small model that knows the format of answers, but not which ones are good."""

    def load_tiny(name: str) -> LoadedModel:
        return load_model(name, attn_implementation=ATTENTION)

    loaded, _ = load_warmed_up(
        "tiny",
        [(spec, spec.check_params({}))],
        steps=settings.warmup_steps,
        seed=0,
        load=load_tiny,
        show=lambda done, total: None,
    )
    loaded.model.set_attn_implementation("sdpa")  # no need for turnwise's own attention
    return loaded


def train(loaded: LoadedModel, spec: EnvSpec, settings: Settings, write: Callable[[str], object]) -> list[float]:
    """Train the policy in place; return the success rate of each step's episodes, on new start states."""
    optimizer = make_optimizer(loaded.model, settings)
    history = []
    for step in range(settings.steps):
        began = time.perf_counter()
        groups = asyncio.run(roll_out(loaded, spec, settings, step))
        loss = update(loaded.model, optimizer, groups, settings, step)
        episodes = [episode for group in groups for episode in group]
        success = sum(episode.success for episode in episodes) / len(episodes)
        reward = sum(episode.reward for episode in episodes) / len(episodes)
        history.append(success)
        seconds = time.perf_counter() - began
        write(f"step {step + 1:3d}  success {success:6.1%}  reward {reward:6.3f}  loss {loss:7.4f}  {seconds:.1f} s\n")
    return history


def main() -> None:
    settings = PRESETS[sys.argv[1] if len(sys.argv) > 1 else "bandit"]
    spec = load_spec(settings.env)
    train(start_policy(spec, settings), spec, settings, sys.stdout.write)


if __name__ == "__main__":
    main()
