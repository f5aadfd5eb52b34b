"""The whole algorithm in one file: read this first.

    python -m turnwise.recipes.reference              # the bandit; prints a line a step
    python -m turnwise.recipes.reference frozen_lake  # five turns an episode

StarPO (Wang et al. 2025, "RAGEN") treats a whole episode, all turns of it, as the thing that is optimised:

    rollout   from each of a few start states play a group of episodes with the present policy
    update    every token that the policy sampled is made likelier if its episode earned more than its group did on
              average, and less likely if it earned less

What is missing here is what makes turnwise fast (a KV cache that lives across turns, packing, shared prompts, episodes
that do not wait for each other) and wide (other advantages and losses, critics, context modes, failures, run folders).
A test plays the same episodes and takes the same gradients with the rest of the package: the two must agree.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from turnwise.core.random_streams import address, random_stream
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Stop
from turnwise.envs.registry import load_spec
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.render.renderer import Renderer
from turnwise.training.warmup import load_warmed_up_tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    env: str
    steps: int
    groups: int = 16
    """Start states a step."""
    group_size: int = 16
    """Episodes of each."""
    max_new_tokens: int = 32
    """Sampled tokens a turn, at most."""
    format_penalty: float = 0.1
    """Subtracted for each turn whose answer could not be read."""
    divide_by_std: bool = True
    """True: GRPO. False: Dr. GRPO, for rewards that are rare; see `group_advantages`."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    mini_batch: int = 128
    """Episodes an optimiser step: an update makes several steps with the tokens of one rollout."""
    learning_rate: float = 1e-3
    max_grad_norm: float = 1.0
    warmup_steps: int = 60
    """Of the model's supervised start on random play; see `turnwise.training.warmup`."""
    seed: int = 0


PRESETS = {
    "bandit": Settings(env="bandit", steps=20, max_new_tokens=24, divide_by_std=False),
    "frozen_lake": Settings(env="frozen_lake", steps=20),
}


@dataclass(slots=True, kw_only=True)
class Episode:
    """One trajectory as it grows. All that was said stands in one row of token ids:

        ids       s s u u a a u u a a     system, user, action, user, action
        sampled   0 0 0 0 1 1 0 0 1 1     only what the policy sampled is trained
        logprobs  . . . . p p . . p p     the policy's, when it sampled them

    The ids are the sampled ones themselves. Nothing is ever turned into text and tokenised again for training: the
    tokenizer might cut that text otherwise, and the log-probabilities would belong to other tokens.
    """

    key: EpisodeKey
    env: TextEnvRunner
    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reward: float = 0.0
    over: bool = False
    success: bool = False

    def show(self, ids: Sequence[int]) -> None:
        """Appends what the policy reads: its prompt, an observation, the chat format around them."""
        self.ids += ids
        self.sampled += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def say(self, token: int, logprob: float) -> None:
        """Appends what the policy sampled."""
        self.ids.append(token)
        self.sampled.append(True)
        self.logprobs.append(logprob)

    def next_random(self) -> float:
        """The next token's random number in (0, 1): SplitMix64 of who samples and how much it has sampled so far.

        So an episode stays the same whatever runs beside it, and a run with the same seed stays the same altogether.
        """
        state = (self.key.address + (sum(self.sampled) + 1) * 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        return ((state ^ state >> 31) >> 41 & 2**23 - 1) / 2**23 + 2**-24


# ---------------------------------------------------------------------------------------------------- rollout stage


async def roll_out(loaded: LoadedModel, kind: EnvSpec, settings: Settings, step: int) -> list[list[Episode]]:
    """Groups of finished episodes. Turns run in lock-step: all episodes that still live speak at the same time."""
    renderer = Renderer(loaded.tokenizer, loaded.stop_ids)
    groups = [start_group(kind, settings, step, number) for number in range(settings.groups)]
    live = [episode for group in groups for episode in group]
    for episode in live:
        observation = await episode.env.start()
        episode.show(renderer.start(observation.messages, observation.tools, observation.tools_in_words))
    while live:
        sizes = [len(episode.ids) for episode in live]
        sample_turn(loaded.model, live, settings.max_new_tokens, renderer.stop_ids)
        for episode, before in zip(live, sizes, strict=True):
            await take_turn(episode, episode.ids[before:], renderer, settings.format_penalty)
        live = [episode for episode in live if not episode.over]
    return groups


def start_group(kind: EnvSpec, settings: Settings, step: int, number: int) -> list[Episode]:
    """Members share the task, and with it the start state; what they sample and the luck they meet is their own."""
    seed = seed_for("train", address("task", settings.seed, step, number) % SEEDS_PER_SPLIT)
    task = Task(env=kind.name, params=kind.check_params({}), seed=seed)
    return [
        Episode(
            key=EpisodeKey(run_seed=settings.seed, round=step, task=task, member=member),
            env=kind.make(task, member),
        )
        for member in range(settings.group_size)
    ]


@torch.no_grad()
def sample_turn(model: Any, episodes: Sequence[Episode], max_new_tokens: int, stop_ids: frozenset[int]) -> None:
    """Lets the policy speak in every episode until it ends its turn. One padded batch, one token at a time."""
    longest = max(len(episode.ids) for episode in episodes)
    padding = [longest - len(episode.ids) for episode in episodes]
    # On the left, so that the last column is everyone's last token.
    ids = torch.tensor([[0] * pad + episode.ids for pad, episode in zip(padding, episodes, strict=True)])
    seen = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
    speaking, cache = list(enumerate(episodes)), None
    for _ in range(max_new_tokens):
        positions = (seen.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = model(ids, attention_mask=seen, position_ids=positions, past_key_values=cache, logits_to_keep=1)
        logprobs, cache = output.logits[:, -1].log_softmax(dim=-1), output.past_key_values
        tokens = torch.zeros(len(episodes), 1, dtype=torch.long)
        for row, episode in speaking:
            tokens[row] = draw(logprobs[row], episode.next_random())
            episode.say(int(tokens[row]), float(logprobs[row, tokens[row]]))
        speaking = [(row, episode) for row, episode in speaking if episode.ids[-1] not in stop_ids]
        if not speaking:
            break
        # Rows that have ended run on with tokens that nobody reads: a batch is a rectangle.
        ids, seen = tokens, torch.cat([seen, torch.ones_like(tokens)], dim=1)


def draw(logprobs: Tensor, number: float) -> int:
    """The token at which the cumulative probability passes `number`. logprobs: [V]"""
    cumulative = logprobs.exp().cumsum(dim=0)  # its end is 1 but for rounding, so the number is scaled to it
    return int(torch.searchsorted(cumulative, number * cumulative[-1], right=True))


async def take_turn(episode: Episode, action: Sequence[int], renderer: Renderer, format_penalty: float) -> None:
    """The environment answers what was said."""
    stop = Stop.EOS if action[-1] in renderer.stop_ids else Stop.LENGTH
    result = await episode.env.step(renderer.parse(action, stop).message)
    episode.reward += result.reward - (format_penalty if result.invalid else 0.0)
    episode.over, episode.success = result.over, result.success
    if not episode.over:
        episode.show(renderer.extend(result.messages, stop))


# ----------------------------------------------------------------------------------------------------- update stage


def group_advantages(rewards: Tensor, divide_by_std: bool) -> Tensor:
    """How much better each episode did than its group. rewards: [groups, members]

    The group's mean says what could be expected from this start state, so no critic has to learn that. Divided by the
    group's spread (GRPO, Shao et al. 2024), hard and easy start states weigh the same. Where a large reward is rare,
    that misleads: most groups have not met it, and in those the small sure reward becomes the best there is. Not
    divided (Dr. GRPO, Liu et al. 2025), what counts is the reward itself.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    spread = rewards.std(dim=1, keepdim=True, correction=min(1, rewards.shape[1] - 1))  # an episode alone: 0, not NaN
    return centred / (spread + 1e-6) if divide_by_std else centred


def policy_loss(model: Any, episodes: Sequence[Episode], advantages: Sequence[float], settings: Settings) -> Tensor:
    """PPO's clipped loss (Schulman et al. 2017), as a mean over all sampled tokens of these episodes.

    ratio = pi(token) / pi_old(token), where pi_old sampled it. The objective min(ratio A, clip(ratio) A) stops to
    reward a change once the ratio has left the interval in the advantage's direction: what was sampled tells little
    about a policy that far away.
    """
    longest = max(len(episode.ids) for episode in episodes)
    # On the right: attention looks back only, so no token sees padding, and no mask is needed.
    ids = torch.tensor([episode.ids + [0] * (longest - len(episode.ids)) for episode in episodes])
    sampled = torch.zeros(ids.shape, dtype=torch.bool)
    for row, episode in enumerate(episodes):
        sampled[row, : len(episode.ids)] = torch.tensor(episode.sampled)
    hidden = model.model(ids).last_hidden_state
    # The hidden state one place earlier is what a token was sampled from. Rows of [M, ...]: one a sampled token.
    logits = model.lm_head(hidden[:, :-1][sampled[:, 1:]])
    logprobs = logits.log_softmax(dim=-1).gather(1, ids[sampled][:, None])[:, 0]
    old_logprobs = torch.tensor(
        [logprob for episode in episodes for logprob, own in zip(episode.logprobs, episode.sampled, strict=True) if own]
    )
    advantage = torch.tensor(advantages).repeat_interleave(sampled.sum(dim=1))
    ratio = (logprobs - old_logprobs).exp()
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
    """One pass over the episodes in mini-batches; the mean loss."""
    episodes = [episode for group in groups for episode in group]
    # In float64: of equal rewards nothing may be left but 0, and a spread of 1e-8 is much beside an epsilon of 1e-6.
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


def start_policy(kind: EnvSpec, settings: Settings) -> LoadedModel:
    """A small model that has seen how answers look, and nothing of which ones are good."""

    def load_tiny(name: str) -> LoadedModel:
        return load_model(name, attn_implementation=ATTENTION)

    loaded, _ = load_warmed_up_tiny(
        [(kind, kind.check_params({}))],
        steps=settings.warmup_steps,
        seed=0,
        load=load_tiny,
        show=lambda done, total: None,
    )
    loaded.model.set_attn_implementation("sdpa")  # transformers' own: nothing here needs another
    return loaded


def train(loaded: LoadedModel, kind: EnvSpec, settings: Settings, write: Callable[[str], object]) -> list[float]:
    """Trains the policy in place; the success rate of each step's episodes, on start states never met before."""
    optimizer = make_optimizer(loaded.model, settings)
    history = []
    for step in range(settings.steps):
        began = time.perf_counter()
        groups = asyncio.run(roll_out(loaded, kind, settings, step))
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
    kind = load_spec(settings.env)
    train(start_policy(kind, settings), kind, settings, sys.stdout.write)


if __name__ == "__main__":
    main()
