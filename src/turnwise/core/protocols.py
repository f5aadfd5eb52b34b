"""The protocols between packages: environments, engines, rewards. `Learner` is in `core/samples.py`."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from turnwise.core.constraint import Constraint
from turnwise.core.errors import InfrastructureFailure
from turnwise.core.messages import Message, Picture, ToolSpec
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Group, Sampler, Status, Stop, Trajectory

if TYPE_CHECKING:  # environments import this module and need no torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Start of an episode: the first messages and the tools."""

    messages: tuple[Message, ...]
    """First messages to the agent, such as a system and a user message."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the chat template shows to the model."""
    tools_in_words: str = ""
    """Description of the tools and of how to call them, for models whose chat template has no tools."""
    picture: Picture | None = None
    """The start state, for the viewer."""
    over: bool = False
    """The episode ended before the agent's first turn, as may happen to one of several agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The environment's answer to one action. `terminated` and `truncated` keep Gymnasium's meaning."""

    messages: tuple[Message, ...] = ()
    """Next messages to the agent."""
    reward: float = 0.0
    """Reward of this turn."""
    terminated: bool = False
    """The episode is over by the rules."""
    truncated: bool = False
    """The turn limit that the prompt states was reached."""
    success: bool = False
    """The task is solved; success rates count this."""
    invalid: bool = False
    """The action could not be parsed or is illegal; `rewards/` subtracts the format penalty."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Further facts to record. `rewards` are components of the reward by name."""
    picture: Picture | None = None
    """The state after the action, for the viewer."""

    @property
    def over(self) -> bool:
        """True if the episode ends with this result."""
        return self.terminated or self.truncated

    @property
    def status(self) -> Status:
        """End of the episode, once it has ended."""
        if self.success:
            return Status.SUCCEEDED
        return Status.FAILED if self.terminated else Status.TRUNCATED_TURNS


class Env(Protocol):
    """The environment of one episode. Single use: there is no reset, so state cannot leak between episodes.

    A class of one's own is called with the `Task`, which determines the start state, and the episode's random stream.
    """

    async def start(self) -> Observation:
        """Return the first messages."""
        ...

    async def step(self, action: Message) -> StepResult:
        """Return the response to the agent's message; its `content` is the whole sampled text."""
        ...

    async def close(self) -> None:
        """Release what the episode holds. Called once, however the episode ended."""
        ...


@runtime_checkable
class SeededEnv(Protocol):
    """An environment whose randomness after the start comes from one stream. Optional: branches reseed it."""

    luck: random.Random


MakeEnv = Callable[[Task, int, int], Env]
"""(task, member, attempt) -> a fresh environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling settings. Log-probabilities are those at `temperature`, before top-p and top-k.

    Under a constraint they are those among the tokens that it allows.
    """

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy; its log-probabilities are those at temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end the turn. Their tokens stay in `Completion.ids`."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end the turn besides the model's own."""
    constraint: Constraint | None = None
    """Grammar that the turn must follow; None allows any text."""

    @property
    def sampler(self) -> Sampler:
        return Sampler(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Sampled tokens of one turn, including the stop token or the tokens of the stop string."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Stop
    temperature: float
    """Temperature of `logprobs`: that of the sampling, and 1 if it was greedy."""
    policy_versions: tuple[int, ...] = ()
    """Last published version when each token was sampled, 0 before any; empty if unknown."""
    values: tuple[float, ...] = ()
    """The critic's value of the position before each token; empty if the engine computes none."""
    constraint: Constraint | None = None
    """Constraint that was enforced."""


class Session(Protocol):
    """One context of an episode, kept across turns. Leaving it ends its request and frees its KV cache."""

    @property
    def sampling_s(self) -> float:
        """Seconds of sampling for this session so far, without the time spent waiting for other sessions.

        Read while a request runs too: an episode that samples for more than rollout.timeout_s is truncated.
        """
        ...

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        """Append `ids` to the context and sample one turn. `restart` first drops the context.

        The sampled tokens join the context; the next call passes only what follows them. An id below 0 is a token of an
        image (`core/images.py`). The caller keeps the context within the longest one by lowering `sampling.max_tokens`.

        Raises ConstraintError if `sampling.constraint` cannot be enforced, InfrastructureFailure to have the episode
        retried, and UserError, or Outage if a service is down, to end the run. Any other exception is a bug and ends
        it too.
        """
        ...

    def fork(self, key: EpisodeKey, length: int | None = None) -> "AbstractAsyncContextManager[Session]":
        """Open a session of `key` that starts with the first `length` tokens of this context; None: with all of them.

        It samples what `open(key)` would sample from the same ids, without computing them again. To be entered between
        two turns of this session, which stays as it is; it may wait until another session ends, so an engine must have
        room for both. Keys and values of older weights are kept, as they are in this session.
        """
        ...


class Policy(Protocol):
    """Generates tokens: `async with policy.open(key) as session`.

    A policy that blocks the event loop while it samples reports the time with `concurrency.loop_clock.count_blocked`,
    because the clocks of environments would count it otherwise.
    """

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager[Session]:
        """Open a session; it may wait until another one ends.

        All randomness comes from `key.address`, which is the same if a failure of infrastructure is retried.
        Equal keys and weights sample equal tokens, as far as the engine's rounding depends on nothing else.
        """
        ...


class WeightSource(Protocol):
    """Weights of a policy by parameter name. Every `torch.nn.Module` is one.

    The names are those of the model that the engine was built with, so `models.weights.copy_parameters` loads them.
    """

    def named_parameters(self) -> "Iterable[tuple[str, Tensor]]": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Totals since the engine was built."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Tokens and forward passes by name, for benchmarks. Training needs none of them; replicas add them up."""
    capture_s: float = 0.0
    """Seconds spent capturing CUDA graphs."""
    busy_s: float = 0.0
    """Seconds of forward passes; 0 if unknown."""
    active_s: float = 0.0
    """Seconds with at least one request to answer; 0 if unknown."""
    published_bytes: int = 0
    """Bytes of weights that publications copied; replicas add them up."""


class EngineControl(Protocol):
    """Control of an engine by the training loop, which opens no sessions itself.

    It needs no `close`: an engine with processes or connections releases them when its event loop ends.
    """

    async def publish(self, version: int, weights: WeightSource) -> None:
        """Generate with these weights from now on.

        `weights` belong to the learner, which changes them after this call: copy them. An engine that shares the
        learner's parameters (`EngineSettings.shares_weights`) copies nothing. In asynchronous training sessions are
        open: their next tokens come from these weights, and `Completion.policy_versions` names those of each.
        """
        ...

    async def sleep(self) -> None:
        """Release the KV cache while no session is open; the next session allocates it again."""
        ...

    def stats(self) -> EngineStats: ...


class Engine(Policy, EngineControl, Protocol):
    """A policy that training can update.

    It samples with the weights that it was built with until some are published: evaluation, judges and the gateway
    publish none.
    """


@runtime_checkable
class ValueEngine(Protocol):
    """An engine that can compute a critic's values while it samples. Optional: the learner computes them otherwise."""

    def set_value_head(self, head: "Callable[[Tensor], Tensor]") -> None:
        """Fill `Completion.values` with this head's values of the hidden states that tokens are sampled from."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """One value per turn, to be added to the trajectory's turn rewards."""

    turn_rewards: tuple[float, ...]


class Reward(Protocol):
    async def __call__(self, trajectory: Trajectory) -> RewardResult: ...


class GroupReward(Protocol):
    """A reward that compares the members of a group. Returns a result or a failure for each member."""

    async def __call__(self, group: Group) -> tuple[RewardResult | InfrastructureFailure, ...]: ...
