"""The protocols between packages: environments, engines, rewards. `Learner` is in `core/samples.py`."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.messages import Message, Picture, ToolSpec
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Group, Status, Stop, Trajectory

if TYPE_CHECKING:  # environments import this module and need no torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Start of an episode: the first messages and the tools."""

    messages: tuple[Message, ...]
    """What the agent reads first, such as a system and a user message."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the chat template shows to the model."""
    tools_in_words: str = ""
    """Description of the tools and of how to call them, for models whose chat template has no tools."""
    picture: Picture | None = None
    """The start state, for the viewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The environment's answer to one action. `terminated` and `truncated` keep Gymnasium's meaning."""

    messages: tuple[Message, ...] = ()
    """What the agent reads next."""
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
        """Whether the episode ends with this result."""
        return self.terminated or self.truncated

    @property
    def status(self) -> Status:
        """How the episode ended, if it did."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling settings. Log-probabilities are those at `temperature`, before top-p and top-k."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy; its log-probabilities are those at temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Sampled tokens of one turn, including the stop token."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Stop
    temperature: float
    policy_versions: tuple[int, ...] = ()
    """Version of the weights that sampled each token; empty if unknown."""
    values: tuple[float, ...] = ()
    """The critic's value of the position before each token; empty if the engine computes none."""


class Session(Protocol):
    """The KV cache of one context, kept across turns."""

    @property
    def sampling_s(self) -> float:
        """Seconds of sampling for this session so far, without the time spent waiting for other sessions."""
        ...

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        """Append `ids` to the context and sample one turn. `restart` first drops the context."""
        ...


class Policy(Protocol):
    """Generates tokens: `async with policy.open(key) as session`."""

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager[Session]: ...


class WeightSource(Protocol):
    """Weights of a policy by parameter name. Every `torch.nn.Module` is one."""

    def named_parameters(self) -> "Iterable[tuple[str, Tensor]]": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Totals since the engine was built."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Tokens and forward passes by name, for benchmarks and metrics."""
    capture_s: float = 0.0
    """Seconds spent capturing CUDA graphs."""
    busy_s: float = 0.0
    """Seconds of forward passes; 0 if unknown."""
    active_s: float = 0.0
    """Seconds with at least one request to answer; 0 if unknown."""


class EngineControl(Protocol):
    """What training does with an engine, wherever its sessions are opened."""

    async def publish(self, version: int, weights: WeightSource) -> None:
        """Generate with these weights from now on. Copies nothing where the engine shares the learner's parameters."""
        ...

    async def sleep(self) -> None:
        """Release the KV cache while no session is open; the next session allocates it again."""
        ...

    def stats(self) -> EngineStats: ...


class Engine(Policy, EngineControl, Protocol):
    """A policy that training can update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """One value per turn, to be added to the trajectory's turn rewards."""

    turn_rewards: tuple[float, ...]


class Reward(Protocol):
    async def __call__(self, trajectory: Trajectory) -> RewardResult: ...


class GroupReward(Protocol):
    """A reward that compares the members of a group. Returns a result or a failure for each member."""

    async def __call__(self, group: Group) -> tuple[RewardResult | InfrastructureFailure, ...]: ...
