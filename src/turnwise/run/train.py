"""Train one run, a resumed run, or one run per seed. `tw.train` is in `api.py`."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from rich.console import Console

from turnwise.algos.estimators import OnPolicySettings
from turnwise.concurrency.spans import SpanLog
from turnwise.config.schema import Config
from turnwise.core.errors import LearnerLost
from turnwise.core.learner import Learner
from turnwise.data.replay import Replay
from turnwise.envs.spec import EnvSpec
from turnwise.models.loading.load import LoadedModel
from turnwise.models.memory.plan import MemoryPlan
from turnwise.record.rows import Record, SetUpRecord, select
from turnwise.record.steps import StepRecord
from turnwise.record.trajectories import open_replay
from turnwise.report.learning_curve import draw_learning_curve
from turnwise.report.progress import Progress
from turnwise.report.tables import seeds_table
from turnwise.report.terminal import make_console
from turnwise.run.build import PolicyStack, build_policy_stack
from turnwise.run.build_learner import build_learner, share_value_head
from turnwise.run.build_loop import LoopInputs, build_loop
from turnwise.run.datasets import STORED_CAPACITY, fill_replay
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.resources import memory_plan
from turnwise.run.restore import open_checkpoints, restore_or_init
from turnwise.run.roles import frozen_players
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
from turnwise.training.offline import score_rendered
from turnwise.training.validation import Evaluator
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

    stack: PolicyStack
    evaluator: Evaluator
    progress: Progress
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
        self.actor_config, self.progress = self.config, progress
        if self.config.cluster.learners:  # the model of this process is only read
            model = self.config.model.model_copy(update={"device": "cpu"})
            self.config = self.config.model_copy(update={"model": model})
        config = self.config
        loaded, warmup_s = self.load_policy(progress)
        frozen = len(set(frozen_players(self.environments).values()))
        plan = memory_plan(config, loaded.model, frozen=frozen)
        if plan.items:
            progress.note(f"memory: {plan.describe()}")
        spans = SpanLog() if config.cluster.is_used or config.rollout.max_staleness else None
        self.stack, learner = self._build_parts(loaded, plan, progress.note, spans)
        self.evaluator = self.build_evaluator(self.stack, progress)
        replay = self._fill_replay(loaded, self.stack, learner, plan, progress) if config.data.sources else None
        checkpoints = open_checkpoints(config.checkpoint, loaded, self.folder)
        self.loop = build_loop(
            LoopInputs(
                config=config,
                environments=self.environments,
                tasks=self.tasks,
                validation_tasks=self.eval_tasks("validation"),
                loaded=loaded,
                stack=self.stack,
                learner=learner,
                plan=plan,
                replay=replay,
                evaluator=self.evaluator,
                checkpoints=checkpoints,
                folder=self.folder,
                progress=progress,
                services=self.services,
                spans=spans,
            )
        )
        self._restore = partial(restore_or_init, config.model, checkpoints, learner, self.folder, note=progress.note)
        state = self._restore(resume=resume)
        if not self.folder.read_records():
            self.folder.append_metrics(SetUpRecord(warmup_s=warmup_s))
        return self.loop, state

    def _fill_replay(
        self, loaded: LoadedModel, stack: PolicyStack, learner: Learner, plan: MemoryPlan, progress: Progress
    ) -> Replay:
        """Read the stored episodes. The initial policy scores those without recorded log-probabilities."""
        replay = open_replay(self.folder.replay, STORED_CAPACITY)
        vocabulary = loaded.model.get_input_embeddings().num_embeddings
        fill_replay(replay, self.config, stack.renderer, vocabulary, progress.note)
        scored = score_rendered(replay, learner, plan.micro_tokens, partial(progress.phase, "reference"))
        if scored:
            progress.note(
                f"{scored:,} episodes have no log-probabilities of a sampler: those of the initial policy "
                f"({loaded.name}) are used instead"
            )
        return replay

    def _build_parts(
        self, loaded: LoadedModel, plan: MemoryPlan, note: Callable[[str], None], spans: SpanLog | None
    ) -> tuple[PolicyStack, Learner]:
        """Build engine and learner in this process, or some of the parts on a cluster."""
        config = self.config
        if not config.cluster.is_used:
            stack = build_policy_stack(config, self.environments, loaded, plan.pages, run=self.folder.path)
            learner = build_learner(config, loaded.model, plan)
            share_value_head(config.rollout, stack.engine, learner)
            return stack, learner
        from turnwise.run.clustering import build_actors

        self._actors = self.resources.enter_context(
            build_actors(self.actor_config, self.environments, loaded, plan, self.folder.path, note)
        )
        self._actors.record_spans(spans)
        return self._actors.stack, self._actors.learner

    def open_gateway(self) -> AbstractAsyncContextManager[object]:
        return self.stack.open()

    def recover(self, loss: LearnerLost) -> State:
        self._actors.restart_learner(loss)
        self.loop.forget_published()
        return self._restore(resume=True)

    async def evaluate(self, name: str, step: int) -> None:
        await self.loop.publish(step)
        await self.evaluator.evaluate(name, self.eval_tasks(self.config.eval.split), step)

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
