"""Episodes of agents: where rewards come from, and how failures are attributed."""

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import turnwise as tw
from processes_for_tests import start_process
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, Outage, RewardFailure, UserError
from turnwise.core.messages import Message, TextPart
from turnwise.core.protocols import Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Sampler, Status, Stop, Trajectory, Turn
from turnwise.envs.agent.settings import CallersAgent
from turnwise.gateway.agent_episodes import AgentCollector, RecordedEpisodes, agents_folder
from turnwise.gateway.agents import CommandAgent, FunctionAgent
from turnwise.rollout.episode import Limits

TURN = Turn(
    context_ids=(1, 2),
    extends=False,
    action_ids=(3,),
    action_logprobs=(-0.5,),
    temperature=1.0,
    spans=(),
    message=Message(role="assistant", parts=(TextPart(text="hello"),)),
    stop=Stop.EOS,
    reward=0.0,
)
TURNS = (TURN, replace(TURN, extends=True))
TASK = Task(env="agent", seed=0, params={"task": {"question": "q"}})


@dataclass
class StubEpisode:
    """An episode whose calls are already recorded."""

    recorded: Sequence[Turn] = TURNS
    rewards: dict[str, float] = field(default_factory=dict)
    overflowed: bool = False
    refusal: str = ""
    failure: Exception | None = None
    bearer: str = "bearer"
    closed: bool = False
    takes_rewards: bool = True

    def turns(self) -> tuple[Turn, ...]:
        assert self.closed, "late calls must not change the turns"
        return tuple(self.recorded)


@dataclass
class StubGateway:
    episode: StubEpisode
    url: str = "http://127.0.0.1:1"
    socket: str = ""
    refusals: deque[str] = field(default_factory=deque)

    async def open_episode(self, key: EpisodeKey, limits: Limits) -> StubEpisode:
        return self.episode

    async def close_episode(self, episode: StubEpisode) -> None:
        episode.closed = True


def collector_of(
    agent: Any,
    episode: StubEpisode | None = None,
    reward: Any = None,
    scored: bool = False,
    timeout_s: float = 60.0,
    **settings: Any,
) -> AgentCollector:
    gateway: Any = StubGateway(episode or StubEpisode())
    config = CallersAgent(**settings)
    sampling = Sampling(max_tokens=4, temperature=0.7, top_p=0.9)
    limits = Limits(sampling=sampling, max_tokens=64, timeout_s=timeout_s)
    host = RecordedEpisodes(gateway=gateway, limits=limits, settings=config, reward=reward, is_scored_later=scored)
    return AgentCollector(
        host=host,
        agent=FunctionAgent(agent) if callable(agent) else agent,
        find_task=lambda task: task.params["task"],
        timeout_s=timeout_s,
        in_flight=1,
        attempts=1,
        run_seed=0,
    )


def play(agent: Any, episode: StubEpisode | None = None, **options: Any) -> Trajectory:
    collector = collector_of(agent, episode, **options)
    (trajectory,) = asyncio.run(collector.episodes([EpisodeKey(run_seed=0, round=0, task=TASK)]))
    return trajectory


def returning(value: Any) -> Any:
    async def agent(client: Any, task: Any) -> Any:
        assert task == {"question": "q"} and client.api_key == "bearer"
        return value

    return agent


@pytest.mark.parametrize(
    ("value", "reward", "status"),
    [
        (0.25, 0.25, Status.FAILED),
        (1, 1.0, Status.SUCCEEDED),
        (True, 1.0, Status.SUCCEEDED),
        (tw.won(reward=0.5), 0.5, Status.SUCCEEDED),
        (tw.lost(reward=2.0), 2.0, Status.FAILED),
        (tw.Outcome(reward=-1.0, success=False), -1.0, Status.FAILED),
    ],
)
def test_return_value_is_the_reward_of_the_last_turn(value: Any, reward: float, status: Status) -> None:
    trajectory = play(returning(value))
    assert trajectory.turn_rewards == (0.0, reward)
    assert [turn.reward for turn in trajectory.turns] == [0.0, reward]
    assert trajectory.status is status
    assert trajectory.sampler == Sampler(temperature=0.7, top_p=0.9)


def test_parts_of_an_outcome_are_recorded() -> None:
    outcome = tw.Outcome(reward=0.5, success=True, parts={"format": 1.0}, text="well done")
    info = play(returning(outcome)).turns[-1].info
    assert info == {"rewards": {"format": 1.0}, "outcome": "well done"}


def test_posted_rewards_count_for_their_calls_and_for_the_episode() -> None:
    episode = StubEpisode((replace(TURN, reward=0.5), TURNS[1]), rewards={"": 0.75, "call-1": 0.5})
    trajectory = play(returning(None), episode)
    assert trajectory.turn_rewards == (0.5, 0.75) and trajectory.status is Status.SUCCEEDED
    assert play(returning(None), replace(episode, closed=False), success_at=2.0).status is Status.FAILED


def test_agent_without_a_reward_is_a_failure_not_reward_zero() -> None:
    with pytest.raises(EnvironmentFailure, match="ended without a reward"):
        play(returning(None))
    trajectory = play(returning(None), scored=True)
    assert trajectory.total_reward == 0.0 and trajectory.status is Status.FAILED


@pytest.mark.parametrize("value", ["1", float("nan"), [1.0], tw.Outcome(reward=float("inf"), success=True)])
def test_non_numeric_reward_stops_the_run(value: Any) -> None:
    with pytest.raises(Outage, match="the agent returned"):
        play(returning(value))


def test_goes_on_is_refused() -> None:
    with pytest.raises(UserError, match=r"use tw\.won or tw\.lost"):
        play(returning(tw.goes_on()))


def test_reward_function_gets_the_task_and_the_result() -> None:
    seen: list[tw.AgentResult] = []

    async def score(task: Any, result: tw.AgentResult) -> float:
        assert task == {"question": "q"} and result.folder.is_dir()
        seen.append(result)
        return 1.0

    trajectory = play(returning("the answer"), reward=score)
    assert trajectory.turn_rewards == (0.0, 1.0) and trajectory.status.succeeded
    assert (seen[0].value, len(seen[0].trajectory.turns)) == ("the answer", 2)
    assert not seen[0].folder.exists()


def test_reward_function_that_hangs_drops_the_episode() -> None:
    async def score(task: Any, result: tw.AgentResult) -> float:
        await asyncio.Event().wait()
        return 1.0

    with pytest.raises(RewardFailure, match=r"within rollout\.timeout_s 0\.05"):
        play(returning(None), reward=score, timeout_s=0.05)


async def crash(client: Any, task: Any) -> float:
    raise ValueError("no JSON")


def test_crash_is_retried_or_a_failed_episode_by_rule() -> None:
    with pytest.raises(EnvironmentFailure, match=r"the agent failed: ValueError: no JSON at test_agents\.py:\d+"):
        play(crash)
    trajectory = play(crash, train_on=("crash",))
    assert trajectory.status is Status.FAILED and trajectory.total_reward == 0.0


def test_crash_after_a_failed_call_is_the_failure_of_that_call() -> None:
    broken = StubEpisode(failure=InfrastructureFailure("the engine is gone"))
    for failures in ((), ("crash",)):
        with pytest.raises(InfrastructureFailure, match="the engine is gone"):
            play(crash, replace(broken, closed=False), train_on=failures)
    with pytest.raises(InfrastructureFailure, match="the engine is gone"):
        play(returning(1.0), replace(broken, closed=False))


def test_crash_after_a_full_context_is_a_truncated_episode() -> None:
    trajectory = play(crash, StubEpisode(overflowed=True, rewards={"": 0.5}))
    assert trajectory.status is Status.TRUNCATED_TOKENS and trajectory.total_reward == 0.5


def test_infrastructure_failure_of_the_agent_passes() -> None:
    async def agent(client: Any, task: Any) -> float:
        raise tw.InfrastructureFailure("the shop is closed")

    with pytest.raises(InfrastructureFailure, match="the shop is closed"):
        play(agent, train_on=("crash",))


def test_timeout_is_retried_or_a_truncated_episode_by_rule() -> None:
    async def agent(client: Any, task: Any) -> float:
        await asyncio.Event().wait()
        return 1.0

    with pytest.raises(InfrastructureFailure, match=r"within rollout\.timeout_s 0\.05"):
        play(agent, timeout_s=0.05)
    trajectory = play(agent, StubEpisode(rewards={"": 0.5}), timeout_s=0.05, train_on=("timeout",))
    assert trajectory.status is Status.TRUNCATED_TIME and trajectory.total_reward == 0.5


def test_time_limit_of_the_agent_itself_is_a_crash() -> None:
    async def agent(client: Any, task: Any) -> float:
        raise TimeoutError("its own")

    with pytest.raises(EnvironmentFailure, match="TimeoutError: its own"):
        play(agent, train_on=("timeout",))


def test_blocking_agent_is_reported_with_its_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.gateway.agents.MAX_BLOCKING_S", 0.1)

    async def agent(client: Any, task: Any) -> float:
        while True:
            pass

    with pytest.raises(UserError, match=r"test_agents\.py:\d+.*await an async client"):
        play(agent)


def test_function_that_is_not_async_is_an_error() -> None:
    with pytest.raises(UserError, match="is not async"):
        play(lambda client, task: 1.0)


def test_agent_without_calls_names_the_likely_reason() -> None:
    collector = collector_of(returning(1.0), StubEpisode(()))
    collector.host.gateway.refusals.append("POST /chat/completions (404)")
    with pytest.raises(EnvironmentFailure, match=r"no model call; the gateway refused POST /chat/completions \(404\)"):
        asyncio.run(collector.episodes([EpisodeKey(run_seed=0, round=0, task=TASK)]))
    with pytest.raises(EnvironmentFailure, match="with the client that it gets as its first argument"):
        play(returning(1.0), StubEpisode(()))


@pytest.mark.parametrize("agent", [returning(1.0), crash])
def test_agent_whose_calls_were_all_refused_names_the_reason(agent: Any) -> None:
    refused = StubEpisode((), overflowed=True, refusal="maximum context length is 64 tokens (rollout.max_tokens)")
    with pytest.raises(EnvironmentFailure, match=r"refused the agent's model calls: .*\(rollout.max_tokens\)"):
        play(agent, refused)


def test_command_gets_the_gateway_and_its_output_is_recorded() -> None:
    code = 'printf "%s " "$OPENAI_BASE_URL" "$OPENAI_API_KEY" "$ANTHROPIC_BASE_URL" "$ANTHROPIC_API_KEY"; echo no >&2'
    trajectory = play(CommandAgent(("sh", "-c", code), {}), reward=lambda task, result: len(result.output.split()))
    address = "http://127.0.0.1:1"
    assert trajectory.turns[-1].info["output"].split() == [f"{address}/v1", "bearer", address, "bearer"]
    assert trajectory.turns[-1].info["errors"] == "no\n"
    assert trajectory.total_reward == 4.0


def test_exit_status_of_a_command_decides_about_its_failure() -> None:
    with pytest.raises(EnvironmentFailure, match="the agent failed: it exited with status 3: oh"):
        play(CommandAgent(("sh", "-c", "echo oh >&2; exit 3"), {}), scored=True)
    for code in ("exit 75", "kill -9 $$"):
        with pytest.raises(InfrastructureFailure, match="the agent did not finish"):
            play(CommandAgent(("sh", "-c", code), {}), scored=True, train_on=("crash",))


def hold_agents_folder(parent: str, name: Path) -> None:
    """Write the path of this process's folder for agents, with an episode's folder in it, and wait."""
    tempfile.tempdir = parent
    with tempfile.TemporaryDirectory(dir=agents_folder()) as folder:
        Path(folder, "file").touch()
        name.with_suffix(".part").write_text(folder)
        name.with_suffix(".part").rename(name)
        time.sleep(600)


def test_next_start_removes_agents_folders_of_killed_processes(tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("killed", "live", "next")]
    processes = []
    try:
        for name in names:
            processes.append(start_process(hold_agents_folder, str(tmp_path), name))
            while not name.exists():
                assert processes[-1].is_alive()
                time.sleep(0.02)
            if name.name == "killed":
                processes[0].kill()
                processes[0].join()
                assert (Path(name.read_text()) / "file").exists(), "a killed process removes nothing"
        killed, live, started = (Path(name.read_text()) for name in names)
        assert not killed.parent.exists()
        assert (live / "file").exists() and (started / "file").exists()
    finally:
        for process in processes:
            process.kill()
            process.join()
