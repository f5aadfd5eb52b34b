"""Train one run, a resumed run, or one run per seed. `tw.train` is in `api.py`."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from turnwise.config.schema import Config
from turnwise.core.errors import LearnerLost
from turnwise.core.learner import Learner
from turnwise.data.replay import Replay
from turnwise.data.samples import AllowedSets
from turnwise.envs.spec import EnvSpec
from turnwise.models.loading.load import LoadedModel
from turnwise.models.memory.plan import MemoryPlan
from turnwise.record.trajectories import open_replay
from turnwise.report.learning_curve import draw_learning_curve
from turnwise.report.progress import Progress, explain_idle_step
from turnwise.report.tables import seeds_table
from turnwise.report.terminal import make_console
from turnwise.report.trajectory_images import TrajectoryImages
from turnwise.rollout.collect import GroupCollector
from turnwise.run.archer import build_archer
from turnwise.run.build import PolicyStack, build_policy_stack, build_rewards, model_loader
from turnwise.run.build_learner import (
    advantage_traits,
    build_coefficients,
    build_learner,
    estimate_settings,
    share_value_head,
    update_settings,
)
from turnwise.run.datasets import fill_replay
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.resources import memory_plan
from turnwise.run.run_name import check_run_name, configs_of_seeds
from turnwise.run.selfplay import build_selfplay
from turnwise.run.training_run import (
    OnStep,
    Summary,
    TrainingRun,
    open_run,
    report_end,
    resolve,
    restore_or_init,
    summarise_success,
)
from turnwise.run.trial_episodes import try_environments
from turnwise.run.validate import check_run
from turnwise.text.command_line import spell_command
from turnwise.training.archer import Archer
from turnwise.training.archer_offline import OfflineArcher
from turnwise.training.asynchronous import AsyncRolloutStage, LearnerThread
from turnwise.training.checkpoints import Checkpoints, State, restore
from turnwise.training.learner import LocalLearner
from turnwise.training.loop import Loop
from turnwise.training.offline import ReplayStage, score_rendered
from turnwise.training.rollout_stage import GroupSource, RolloutStage
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
) -> Summary:
    """Train one run and return its summary.

    `override_keys` are the settings that the user gave explicitly; one without effect is an error.
    """
    environments = build_environment_mix(config, spec)
    if not resume:
        check_run_name(config)
    check_run(config, environments, override_keys, resume=resume)
    console = console or make_console()
    if not resume and not config.data.sources:
        try_environments(config, environments, console.print)
    config = resolve(config)
    algo = config.algo
    with open_run(
        config,
        environments,
        console,
        method=reference_name(algo.advantage) if algo.method == "on_policy" else algo.method,
        resume=resume,
        if_finished=_advise_finished,
    ) as folder:
        summary, path = ReinforcementRun(config, environments, folder, console, on_step).train(resume), folder.path
    episodes = min(EVAL_EPISODES, environments.entries[0].sizes.get(config.eval.split, EVAL_EPISODES))
    advice = spell_command("eval", path, "--episodes", episodes)
    report_end(config, summary, path, console, advice=advice)
    if summary["steps"] and summary["idle_steps"] == summary["steps"]:
        console.print("No step trained anything, so the model is unchanged.")
    return summary | {"path": str(path)}


def _advise_finished(path: Path) -> str:
    further = spell_command("train", "--from", path, "--model.name", path)
    evaluate = spell_command("eval", path)
    return f"To train it further, start another run from it: `{further}`. To evaluate it: `{evaluate}`"


def train_seeds(
    config: Config, seeds: Sequence[int], console: Console | None = None, override_keys: Iterable[str] = ()
) -> list[Summary]:
    """Train one run per seed, one after the other, and print a table of them."""
    console = console or make_console()
    configs = configs_of_seeds(config, seeds)
    for one in configs:
        check_run_name(one)
    summaries = [train(one, console=console, override_keys=override_keys) for one in configs]
    if trained := [summary for summary in summaries if summary["steps"]]:
        console.print(seeds_table(trained))
    return summaries


class ReinforcementRun(TrainingRun):
    """A run of reinforcement learning."""

    stack: PolicyStack
    """Built with the loop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.actor_config = self.config
        if self.config.cluster.learners:  # the model of this process is only read
            model = self.config.model.model_copy(update={"device": "cpu"})
            self.config = self.config.model_copy(update={"model": model})

    def build(self, progress: Progress, resume: bool) -> tuple[Loop, State]:
        config = self.config
        loaded, warmup_s = self.load_policy(progress)
        plan = memory_plan(config, loaded.model)
        if plan.items:
            progress.note(f"memory: {plan.describe()}")
        stack, learner = self._build_parts(loaded, plan, progress.note)
        self.stack = stack
        replay = self._fill_replay(loaded, stack, learner, plan, progress) if config.data.sources else None
        archer = (
            build_archer(config, stack, learner, self.folder.replay, replay, plan)
            if isinstance(learner, LocalLearner)
            else None
        )
        self._restore = partial(restore_or_init, config, loaded, learner, self.folder, note=progress.note)
        checkpoints, state = self._restore(resume=resume)
        if archer is not None:
            archer.rewind(state.step)
        if not self.folder.read_metrics():
            self.folder.append_metrics({"step": 0, "time/warmup_s": warmup_s})
        return self._loop(loaded, stack, learner, archer, checkpoints, progress, plan, replay), state

    def _fill_replay(
        self, loaded: LoadedModel, stack: PolicyStack, learner: Learner, plan: MemoryPlan, progress: Progress
    ) -> Replay:
        """Read the stored episodes. The initial policy scores those without recorded log-probabilities."""
        replay = open_replay(self.folder.replay, self.config.data.capacity)
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
        self, loaded: LoadedModel, plan: MemoryPlan, note: Callable[[str], None]
    ) -> tuple[PolicyStack, Learner]:
        """Build engine and learner in this process, or some of the parts on a cluster."""
        config = self.config
        if not config.cluster.is_used:
            stack = build_policy_stack(config, self.environments, loaded, plan.pages, run=self.folder.path)
            learner = build_learner(config, loaded.model, plan)
            share_value_head(config, stack.engine, learner)
            return stack, learner
        from turnwise.run.clustering import build_actors

        self._actors = self.resources.enter_context(
            build_actors(self.actor_config, self.environments, loaded, plan, self.folder.path, note)
        )
        return self._actors.stack, self._actors.learner

    def open_gateway(self) -> AbstractAsyncContextManager[object]:
        return self.stack.open()

    def recover(self, loss: LearnerLost) -> State:
        self._actors.restart_learner(loss)
        return self._restore(resume=True)[1]

    def _loop(
        self,
        loaded: LoadedModel,
        stack: PolicyStack,
        learner: Learner,
        archer: Archer | OfflineArcher | None,
        checkpoints: Checkpoints,
        progress: Progress,
        plan: MemoryPlan,
        replay: Replay | None,
    ) -> Loop:
        config, tokens = self.config, plan.micro_tokens
        allowed_sets = stack.renderer.grammars.allowed_sets
        collector, opponents = build_selfplay(
            config, self.environments, self.tasks, loaded, stack, learner, checkpoints, self.folder, progress
        )
        rollout_stage: GroupSource
        if replay is None:
            rollout_stage = self._rollout_stage(stack, collector, learner, tokens)
        else:
            rollout_stage = self._replay_stage(replay, learner, tokens, allowed_sets)
        return Loop(
            config=config,
            estimate_settings=estimate_settings(config, tokens, allowed_sets),
            update_settings=update_settings(config, tokens),
            rollout_stage=rollout_stage,
            evaluator=self.build_evaluator(stack, progress),
            engine=stack.engine,
            learner=learner,
            coefficients=build_coefficients(config),
            checkpoints=checkpoints,
            restore=lambda folder, state: restore(Path(folder), learner, state, model_loader(config)),
            folder=self.folder,
            progress=progress,
            decode=stack.renderer.decode,
            name_token=stack.renderer.name_token,
            pictures=TrajectoryImages(
                self.folder.trajectories,
                every=config.record.pictures_every,
                per_step=config.record.pictures_per_step,
                warn=progress.note,
            ),
            validation_tasks=self.eval_tasks("validation"),
            opponents=opponents,
            services=self.services,
            max_seconds=progress.limit_s,
            release_cache=plan.releases_cache,
            learner_thread=LearnerThread() if config.rollout.max_staleness else None,
            archer=archer,
        )

    def _replay_stage(
        self, replay: Replay, learner: Learner, micro_tokens: int, allowed_sets: AllowedSets
    ) -> ReplayStage:
        config = self.config
        return ReplayStage(
            tasks=self.tasks,
            replay=replay,
            algo=config.algo,
            learner=learner,
            groups=config.rollout.groups,
            group_size=config.rollout.group_size,
            micro_tokens=micro_tokens,
            run_seed=config.seed,
            pair_gap=config.data.pair_gap,
            allowed_sets=allowed_sets,
        )

    def _rollout_stage(
        self, stack: PolicyStack, collector: GroupCollector, learner: Learner, micro_tokens: int
    ) -> RolloutStage:
        config = self.config
        staleness = config.rollout.max_staleness
        build_stage = (
            partial(
                AsyncRolloutStage,
                max_staleness=staleness,
                steps=config.train.steps,
                in_flight=config.rollout.in_flight,
            )
            if staleness
            else RolloutStage
        )
        return build_stage(
            tasks=self.tasks,
            collector=collector,
            greedy=stack.greedy if advantage_traits(config).needs_greedy else None,
            rewards=build_rewards(config, self.services.judges, stack.renderer.decode),
            algo=config.algo,
            learner=learner,
            groups=config.rollout.groups,
            group_size=config.rollout.group_size,
            refill=config.algo.filter_refill,
            micro_tokens=micro_tokens,
            allowed_sets=stack.renderer.grammars.allowed_sets,
        )

    def write_figures(self, rows: Sequence[dict[str, Any]]) -> None:
        self.folder.write_text("curve.svg", draw_learning_curve(rows, self.folder.path.name))

    def summarise(self, rows: Sequence[dict[str, Any]]) -> Summary:
        return summarise(rows, seed=self.config.seed)


def summarise(rows: Sequence[dict[str, Any]], seed: int) -> Summary:
    """Return the contents of `summary.json`."""
    steps = [row for row in rows if "rollout/episodes" in row or "data/episodes" in row]
    return summarise_success(rows, steps, seed) | {
        "dropped": int(sum(row.get("rollout/dropped", 0) for row in steps)),
        "dropped_no_reward": int(sum(row.get("rollout/dropped_no_reward", 0) for row in steps)),
        "idle_steps": sum(explain_idle_step(row) is not None for row in steps),
        "episodes": int(sum(row.get("rollout/episodes", 0) for row in steps)),
        "tokens": int(sum(row.get("rollout/sampled_tokens", 0) for row in steps)),
    }
