"""`turnwise doctor --agent`: run one episode of an agent and report what the gateway captured."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from turnwise.config.load import Overrides
from turnwise.config.schema import Config
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Stop, Trajectory, Turn
from turnwise.envs.agent.choices import is_command_line_agent
from turnwise.envs.agent.harness import HARBOR_ENV, Harness
from turnwise.envs.agent.settings import AgentSettings, StartedAgent
from turnwise.envs.agent.tasks import find_row
from turnwise.envs.seeds import FIRST_SEED
from turnwise.gateway.harbor_agent import find_harbor_episode, find_program
from turnwise.run.build import PolicyStack, build_policy_stack
from turnwise.run.configure import configure
from turnwise.run.doctor import Finding
from turnwise.run.environment_mix import build_environment_mix, build_task_source
from turnwise.run.load_policy import load_policy
from turnwise.run.training_run import resolve
from turnwise.run.validate import check_run
from turnwise.text.truncation import one_line, shorten

TOKEN_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Names of the token limit in requests."""
MAX_SHOWN = 100
"""Characters shown of a text."""
TRIAL_TASK = {
    "task.toml": '[metadata]\nsplit = "SPLIT"\n',
    "instruction.md": "Write SPLIT into /app/out.txt.",
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
    "tests/test.sh": 'test "$(cat /app/out.txt)" = SPLIT; echo $((1 - $?)) > /logs/verifier/reward.txt\n',
}
"""Files of the Harbor tasks of one command, one per split, that a command-line agent plays where none are named."""


def check_agent(agent: str, overrides: Overrides = (), tasks: str | None = None) -> list[Finding]:
    """Run an agent on its first training task. Raises UserError if the episode fails.

    `agent`: a settings file, or the name of a command-line agent, which plays `tasks` (harbor:FOLDER), or without them
    a task of one command.
    """
    if not is_command_line_agent(agent):
        return _check_configured(configure(agent, overrides=overrides), overrides)
    chosen = [("agent", agent), *overrides]
    if tasks is not None:
        return _check_configured(configure(tasks, overrides=chosen), chosen)
    with TemporaryDirectory(prefix="turnwise-doctor-") as folder:
        write_trial_tasks(Path(folder))
        return _check_configured(configure(f"{HARBOR_ENV}:{folder}", overrides=chosen), chosen)


def write_trial_tasks(folder: Path) -> None:
    for split in FIRST_SEED:
        for name, text in TRIAL_TASK.items():
            path = folder / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("SPLIT", split), encoding="utf-8")


def _check_configured(config: Config, overrides: Overrides) -> list[Finding]:
    if not isinstance(config.agent, StartedAgent | Harness):
        raise UserError("The settings have no agent. Set agent.command or agent.function.")
    environments = build_environment_mix(config.env, config.agent)
    check_run(config, environments, [key for key, _ in overrides])
    config = resolve(config)
    task = build_task_source(config, environments).first_tasks("train", 1)[0]
    untrained = config.model_copy(update={"model": config.model.model_copy(update={"warmup_steps": 0})})
    loaded, _ = load_policy(untrained, environments, lambda done, total: None)
    trajectory = asyncio.run(_run_episode(build_policy_stack(config, environments, loaded), task))
    return list(_describe(config, trajectory))


async def _run_episode(stack: PolicyStack, task: Task) -> Trajectory:
    async with stack.open():
        try:
            (trajectory,) = await stack.collector.episodes([EpisodeKey(run_seed=0, round=0, task=task)])
        except (EnvironmentFailure, InfrastructureFailure) as failure:
            raise UserError(f"The episode failed: {failure}") from failure
    return trajectory


def _describe(config: Config, trajectory: Trajectory) -> Iterator[Finding]:
    turns = trajectory.turns
    started, task = _name_agent_and_task(config.agent, trajectory.task)
    contexts, cut = len(list(trajectory.segments())), [turn for turn in turns if turn.stop is Stop.LENGTH]
    context_tokens = sum(len(turn.context_ids) for turn in turns)
    yield Finding(name="agent", found=shorten(one_line(started), MAX_SHOWN))
    yield Finding(name="task", found=shorten(one_line(task), MAX_SHOWN))
    yield Finding(
        name="calls", found=f"{len(turns)} captured, in {contexts} {'context' if contexts == 1 else 'contexts'}"
    )
    yield Finding(name="tokens", found=f"{trajectory.num_sampled} sampled, {context_tokens} of the context")
    fix = "; ".join(dict.fromkeys(explain_cut(config, turn) for turn in cut))
    yield Finding(name="cut off", found=f"{len(cut)} of {len(turns)} replies", fix=fix, required=False)
    yield Finding(name="last reply", found=shorten(one_line(turns[-1].message.content), MAX_SHOWN))
    yield Finding(name="reward", found=f"{trajectory.total_reward:g} ({trajectory.status.value})")
    if printed := turns[-1].info.get("output", "").strip():
        yield Finding(name="printed", found=shorten(one_line(printed.splitlines()[-1]), MAX_SHOWN))
    yield Finding(name="seconds", found=f"{trajectory.timings['wall_s']:.1f}")


def _name_agent_and_task(agent: AgentSettings, task: Task) -> tuple[str, str]:
    if isinstance(agent, Harness):
        return f"{agent.kind}, {find_program(agent).command[0]}", find_harbor_episode(task).task.instruction
    assert isinstance(agent, StartedAgent)
    return agent.started, json.dumps(find_row(task), ensure_ascii=False)


def explain_cut(config: Config, turn: Turn) -> str:
    """Return which limit cut a reply off, and what to do about it."""
    asked = next((turn.info["asked"][name] for name in TOKEN_LIMITS if name in turn.info["asked"]), None)
    if asked is not None and asked <= len(turn.action_ids):
        return f"the agent itself asked for at most {asked} tokens"
    if len(turn.action_ids) >= config.rollout.max_new_tokens:
        return f"raise rollout.max_new_tokens {config.rollout.max_new_tokens}, unless the model is untrained"
    return f"the context was full: raise rollout.max_tokens {config.rollout.max_tokens}, or shorten the conversation"
