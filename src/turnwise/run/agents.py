"""Build and check the agent of a run: a command or a function that calls the policy through the gateway."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.core.errors import UserError, optional_packages
from turnwise.core.protocols import Policy
from turnwise.core.task import Task
from turnwise.envs.agent.harness import Harness
from turnwise.envs.agent.settings import AgentSettings, CommandSettings, FunctionSettings
from turnwise.envs.agent.tasks import find_row
from turnwise.gateway.agent_episodes import AgentCollector, AgentReward, EpisodeHost, RecordedEpisodes, agents_folder
from turnwise.gateway.agent_process import build_environment, split_command
from turnwise.gateway.agents import Agent, AgentFunction, CommandAgent, FunctionAgent
from turnwise.gateway.harbor_agent import build_harbor_agent, find_harbor_episode
from turnwise.record.run_folder import CALLS_FILE
from turnwise.render.renderer import Renderer
from turnwise.rewards.functions import accepts_arguments, check_reward_function
from turnwise.rewards.settings import RewardConfig
from turnwise.rollout.episode import Limits
from turnwise.rollout.settings import RolloutConfig
from turnwise.user_code.references import load_function

if TYPE_CHECKING:  # its packages are optional
    from turnwise.gateway.server import Gateway


def build_gateway(
    rollout: RolloutConfig,
    policy: Policy,
    renderer: Renderer,
    limits: Limits,
    run: Path | None,
    *,
    on_socket: bool = False,
) -> "Gateway":
    """Build the gateway. It keeps its calls in the folder `run`, or in memory if it is None.

    `on_socket`: it also listens on a Unix socket, for agents in a sandbox.
    """
    with optional_packages("An agent", "gateway", "starlette", "uvicorn"):
        from turnwise.gateway.server import Gateway
    store = None if run is None else run / CALLS_FILE
    sockets = sockets_folder() if on_socket else None
    return Gateway(policy, renderer, limits, store, max_sessions=rollout.in_flight, sockets=sockets)


def build_agent_collector(
    agent: AgentSettings,
    reward: RewardConfig,
    rollout: RolloutConfig,
    gateway: "Gateway",
    limits: Limits,
    run_seed: int,
) -> AgentCollector:
    find_task: Callable[[Task], Any] = find_harbor_episode if isinstance(agent, Harness) else find_row
    host = RecordedEpisodes(
        gateway=gateway,
        limits=limits,
        settings=agent,
        reward=load_reward(agent),
        is_scored_later=bool(reward.functions or reward.judges),
    )
    return build_collector(agent, rollout, host, find_task, run_seed)


def build_collector(
    agent: AgentSettings, rollout: RolloutConfig, host: EpisodeHost, find_task: Callable[[Task], Any], run_seed: int
) -> AgentCollector:
    """Return the collector of an agent's episodes on this host."""
    return AgentCollector(
        host=host,
        agent=build_agent(agent, rollout),
        find_task=find_task,
        timeout_s=None if isinstance(agent, Harness) else rollout.timeout_s,
        in_flight=rollout.in_flight,
        attempts=rollout.attempts,
        run_seed=run_seed,
    )


def build_agent(settings: AgentSettings, rollout: RolloutConfig) -> Agent:
    """Return the agent. Raises UserError if it cannot be started."""
    if isinstance(settings, Harness):
        limits = {"max_tokens": rollout.max_tokens, "max_new_tokens": rollout.max_new_tokens}
        return build_harbor_agent(settings, sockets_folder(), **limits, timeout_s=rollout.timeout_s)
    if isinstance(settings, CommandSettings):
        return CommandAgent(split_command(settings.command), build_environment(settings.pass_env))
    if isinstance(settings, FunctionSettings):
        return FunctionAgent(check_agent_function(load_function(settings.function, "agent.function")))
    return FunctionAgent(_refuse)  # `tw.Trainer` is given its agent with the tasks


def sockets_folder() -> Path:
    """Return this process's folder for the Unix sockets of gateways, which every user may enter."""
    folder = Path(agents_folder()) / "sockets"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    return folder


async def _refuse(client: object, task: object) -> None:
    raise UserError("The run has no agent: set agent.command or agent.function.")


def check_agent_function(function: AgentFunction) -> AgentFunction:
    """Return the function if it can be an agent; else raise UserError."""
    name = getattr(function, "__name__", "the agent")
    called = getattr(function, "__call__", function)  # noqa: B004  (an object with an async __call__ is an agent too)
    if not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(called):
        raise UserError(f"{name} is not an async function: write async def {name}(client, task).")
    if not accepts_arguments(function, 2):
        raise UserError(f"{name} must take two arguments: write async def {name}(client, task).")
    return function


def load_reward(settings: AgentSettings) -> AgentReward | None:
    """Load agent.reward; None without one."""
    if settings.reward is None:
        return None
    function = load_function(settings.reward, "agent.reward")
    label = f"agent.reward {settings.reward}"
    check_reward_function(function, label)
    if not accepts_arguments(function, 2):
        raise UserError(f"{label} must take two arguments: write function(task, result).")
    return function
