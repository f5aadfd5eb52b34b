"""Train one run, a resumed run, or one run per seed. `tw.train` is in `api.py`."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from rich.console import Console

from turnwise.algos.estimators import OnPolicySettings
from turnwise.config.schema import Config
from turnwise.core.errors import LearnerLost
from turnwise.envs.spec import EnvSpec
from turnwise.record.rows import Record, SetUpRecord, select
from turnwise.record.steps import StepRecord
from turnwise.report.learning_curve import draw_learning_curve
from turnwise.report.progress import Progress
from turnwise.report.tables import seeds_table
from turnwise.report.terminal import make_console
from turnwise.run.build_loop import build_loop
from turnwise.run.build_parts import OpenRun, Parts, build_parts
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.restore import restore_or_init
from turnwise.run.run_name import check_run_name, configs_of_seeds
from turnwise.run.training_run import (
    OnStep,
    Summary,
    TrainingRun,
    resolve,
    summarise_success,
)
from turnwise.run.trial_episodes import try_environments
from turnwise.run.validate import check_run
from turnwise.text.command_line import spell_command
from turnwise.training.checkpoints import State
from turnwise.training.loop import Loop
from turnwise.user_code.references import reference_name

EVAL_EPISODES = 512
"""Episodes in the suggested evaluation: enough to measure success to a few percentage points."""


def train(
    config: Config,
    *,
    resume: bool = False,
    spec: EnvSpec | None = None,
    console: Console | None = None,
    override_keys: Iterable[str] = (),
    on_step: OnStep | None = None,
    tried: bool = False,
) -> Summary:
    """Train one run and return its summary.

    `override_keys` are the settings that the user gave explicitly; one without effect is an error. `tried`: see
    `try_before_torch`.
    """
    environments = build_environment_mix(config.env, config.agent, spec)
    check_run(config, environments, override_keys, resume=resume)
    run = ReinforcementRun(resolve(config), environments, console or make_console(), on_step)
    run.is_tried = tried
    return run.run(resume)


def train_seeds(
    config: Config,
    seeds: Sequence[int],
    console: Console | None = None,
    override_keys: Iterable[str] = (),
    *,
    tried: bool = False,
) -> list[Summary]:
    """Train one run per seed, one after the other, and print a table of them. `tried`: see `try_before_torch`."""
    console = console or make_console()
    configs = configs_of_seeds(config, seeds)
    for one in configs:
        check_run_name(one.record)
    summaries = [train(one, console=console, override_keys=override_keys, tried=tried) for one in configs]
    if trained := [summary for summary in summaries if summary["steps"]]:
        console.print(seeds_table(trained))
    return summaries


class ReinforcementRun(TrainingRun):
    """A run of reinforcement learning."""

    parts: Parts
    loop: Loop
    """Built by `build`."""
    is_tried: bool = False
    """See `try_before_torch`."""

    @property
    def method(self) -> str:
        algo = self.config.algo
        is_on_policy = isinstance(algo.estimator, OnPolicySettings)
        return reference_name(algo.advantage.kind if is_on_policy else algo.estimator.kind)

    def advise_finished(self, path: Path) -> str:
        further = spell_command("train", "--from", path, "--model.name", path)
        evaluate = spell_command("eval", path)
        return f"To train it further, start another run from it: `{further}`. To evaluate it: `{evaluate}`"

    def next_command(self, path: Path) -> str:
        sizes = self.environments.entries[0].sizes
        episodes = min(EVAL_EPISODES, sizes.get(self.config.eval.split, EVAL_EPISODES))
        roles = self.environments.roles
        one_role = ("--env.params.role", roles[0]) if len(roles) > 1 else ()
        return spell_command("eval", path, *one_role, "--episodes", episodes)

    def prepare(self) -> None:
        if not self.config.data.sources and not self.is_tried:
            try_environments(self.config, self.environments, self.console.print)

    def build(self, progress: Progress, resume: bool) -> tuple[Loop, State]:
        self.parts = parts = build_parts(
            self.config,
            OpenRun(
                environments=self.environments,
                tasks=self.tasks,
                validation_tasks=self.eval_tasks("validation"),
                folder=self.folder,
                progress=progress,
                services=self.services,
                resources=self.resources,
            ),
        )
        self.loop = build_loop(parts)
        state = self.restore(resume)
        if not self.folder.read_records():
            self.folder.append_metrics(SetUpRecord(warmup_s=parts.warmup_s))
        return self.loop, state

    def restore(self, resume: bool) -> State:
        parts, note = self.parts, self.parts.run.progress.note
        return restore_or_init(
            parts.config.model, parts.checkpoints, parts.learner, self.folder, resume=resume, note=note
        )

    def open_gateway(self) -> AbstractAsyncContextManager[object]:
        return self.parts.stack.open()

    def recover(self, loss: LearnerLost) -> State:
        self.parts.restart_learner(loss)
        self.loop.forget_published()
        return self.restore(resume=True)

    async def evaluate(self, name: str, step: int) -> None:
        await self.loop.publish(step)
        await self.parts.evaluator.evaluate(name, self.eval_tasks(self.config.eval.split), step)

    def write_figures(self, records: Sequence[Record]) -> None:
        self.folder.write_text("curve.svg", draw_learning_curve(records, self.folder.path.name))

    def summarise(self, records: Sequence[Record]) -> Summary:
        return summarise(records, seed=self.config.seed)


def summarise(records: Sequence[Record], seed: int) -> Summary:
    """Return the contents of `summary.json`."""
    steps = select(records, StepRecord)
    return summarise_success(records, seed) | {
        "dropped": int(sum(record.rollout.get("dropped", 0) for record in steps)),
        "dropped_no_reward": int(sum(record.rollout.get("dropped_no_reward", 0) for record in steps)),
        "idle_steps": sum(record.idle is not None for record in steps),
        "episodes": int(sum(record.played("episodes") for record in steps)),
        "tokens": int(sum(record.played("sampled_tokens") for record in steps)),
    }
