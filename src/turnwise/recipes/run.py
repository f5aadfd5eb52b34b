"""Runs: train, resume, train over seeds. What a command or `tw.train` calls."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from turnwise.algos.advantages import ADVANTAGES
from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import TextEnv
from turnwise.models.loading.load import LoadedModel
from turnwise.models.memory.plan import MemoryPlan
from turnwise.recipes.build import (
    Players,
    build_dials,
    build_learner,
    build_players,
    build_scoring,
    diagnose_settings,
    estimate_settings,
    filter_settings,
    load_policy,
    model_loader,
    update_settings,
)
from turnwise.recipes.configure import place_files
from turnwise.recipes.environment_mix import Worlds, task_source
from turnwise.recipes.memory import memory_plan
from turnwise.recipes.open_run import opened, settled, standing, tracked
from turnwise.recipes.selfplay import build_selfplay
from turnwise.recipes.validate import check_run
from turnwise.record.run_folder import RunFolder
from turnwise.report.html_report import write_report
from turnwise.report.learning_curve import draw_learning_curve
from turnwise.report.pictures.trajectory_images import TrajectoryImages
from turnwise.report.progress import Progress, explain_idle_step
from turnwise.report.tables import run_table, seeds_table
from turnwise.report.terminal import make_console
from turnwise.training.checkpoints import Checkpoints, State, restore
from turnwise.training.learner import LocalLearner
from turnwise.training.loop import Loop, LoopSettings
from turnwise.training.rollout_stage import Gatherer

Summary = dict[str, Any]
MANY = 512
"""Episodes that tell success to a few points, where there are as many tasks."""


def train(
    config: Config,
    *,
    resume: bool = False,
    kind: EnvSpec | None = None,
    console: Console | None = None,
    given: Iterable[str] = (),
) -> Summary:
    """Trains one run and returns its summary, which is also in its folder. `given`: the settings that were typed."""
    worlds = check_run(config, kind, given, resume=resume)
    console = console or make_console()
    config, others = settled(config), "start another with --from PATH, or see `turnwise eval PATH`"
    with opened(
        config, worlds, console, method=config.algo.advantage, command="train", resume=resume, finished=others
    ) as folder:
        summary, path = _Run(config, worlds, folder, console).train(resume), folder.path
    if summary["finished"]:
        there = worlds.worlds[0].sizes.get(config.eval.split, MANY)
        console.print(run_table(summary, path, next_line=f"turnwise eval {path} --episodes {min(MANY, there)}"))
        if summary["idle_steps"] == summary["steps"]:
            console.print("no step trained anything: the model is the one that it started from")
    else:
        console.print(f"stopped after {summary['steps']} steps; go on with: turnwise train --resume {path}")
    return summary


def train_seeds(
    config: Config, seeds: Sequence[int], console: Console | None = None, given: Iterable[str] = ()
) -> list[Summary]:
    """One run a seed, one after the other, and a table over them."""
    console = console or make_console()
    summaries = []
    for seed in seeds:
        name = f"{config.record.name}-seed{seed}" if config.record.name else None
        record = config.record.model_copy(update={"name": name})
        one = config.model_copy(update={"seed": seed, "record": record})
        summaries.append(train(one, console=console, given=given))
    if finished := [summary for summary in summaries if summary["finished"]]:
        console.print(seeds_table(finished))
    return summaries


def train_env(env: type[TextEnv] | str, model: str = "tiny", steps: int | None = None, **settings: Any) -> Summary:
    """`tw.train(env=GuessNumber, model="tiny", steps=100)`; further settings by their dotted name with `__` for `.`:

    `tw.train(env="sokoban", algo__advantage="gae", seed=1)`
    """
    kind = load_spec(env) if isinstance(env, str) else spec_of(env)
    given: dict[str, Any] = {"model.name": model, **({} if steps is None else {"train.steps": steps})}
    given |= {name.replace("__", "."): value for name, value in settings.items()}
    config = place_files(build({"env": {"kind": kind.id or kind.name}}, list(given.items())))
    return train(config, kind=kind, given=given)


@dataclass
class _Run:
    config: Config
    worlds: Worlds
    folder: RunFolder
    console: Console

    def train(self, resume: bool) -> Summary:
        config = self.config
        torch.set_num_threads(config.system.threads)
        minutes = config.train.max_minutes
        self.tasks = task_source(config, self.worlds)
        limit_s = None if minutes is None else 60 * minutes
        with Progress(config.train.steps, self.console, title=self.folder.path.name, limit_s=limit_s) as progress:
            loop, state = self._build(progress, limit_s, resume)
            with tracked(config, self.folder, progress.note, after=state.step if resume else None):
                return asyncio.run(self._train(loop, state))

    def _build(self, progress: Progress, limit_s: float | None, resume: bool) -> tuple[Loop, State]:
        config = self.config
        loaded, warmup_s = load_policy(
            config, self.worlds, lambda done, total: progress.phase("warm-up", done, total), self.folder.path
        )
        plan = memory_plan(config, loaded.model)
        if plan.parts:
            progress.note(f"memory: {plan.describe()}")
        players = build_players(config, self.worlds, loaded, plan.pages)
        learner = build_learner(config, loaded.model, plan)
        checkpoints, state = standing(config, loaded, learner, self.folder, resume=resume, tell=progress.note)
        if not self.folder.read_metrics():
            self.folder.append_metrics({"step": 0, "time/warmup_s": warmup_s})
        return self._loop(loaded, players, learner, checkpoints, progress, limit_s, plan), state

    def _loop(
        self,
        loaded: LoadedModel,
        players: Players,
        learner: LocalLearner,
        checkpoints: Checkpoints,
        progress: Progress,
        limit_s: float | None,
        plan: MemoryPlan,
    ) -> Loop:
        config, tokens = self.config, plan.micro_tokens
        collector, rivals = build_selfplay(
            config, self.worlds, self.tasks, loaded, players, checkpoints, self.folder, progress
        )
        gatherer = Gatherer(
            tasks=self.tasks,
            collector=collector,
            greedy=players.greedy if ADVANTAGES[config.algo.advantage].needs_greedy else None,
            scoring=build_scoring(config, players.renderer.decode),
            filter=filter_settings(config),
            learner=learner,
            groups=config.rollout.groups,
            group_size=config.rollout.group_size,
            refill=config.algo.filter_refill,
            micro_tokens=tokens,
        )
        return Loop(
            settings=self._loop_settings(limit_s, plan.releases_cache),
            estimate_settings=estimate_settings(config, tokens),
            update_settings=update_settings(config, tokens),
            diagnose_settings=diagnose_settings(config),
            gatherer=gatherer,
            evaluator=players.evaluator,
            engine=players.engine,
            learner=learner,
            dials=build_dials(config),
            checkpoints=checkpoints,
            restore=lambda folder, state: restore(Path(folder), learner, state, model_loader(config)),
            folder=self.folder,
            progress=progress,
            decode=players.renderer.decode,
            name_token=players.renderer.name_token,
            pictures=TrajectoryImages(
                self.folder.trajectories,
                every=config.record.pictures_every,
                per_step=config.record.pictures_per_step,
                warn=progress.note,
            ),
            rivals=rivals,
        )

    def _loop_settings(self, limit_s: float | None, releases_cache: bool) -> LoopSettings:
        config = self.config
        return LoopSettings(
            steps=config.train.steps,
            eval_every=config.eval.every,
            eval_tasks=self.tasks.held_out("validation", config.eval.episodes),
            checkpoint_every=config.checkpoint.every,
            keep_best=config.checkpoint.keep_best,
            record_every=config.record.trajectories,
            max_seconds=limit_s,
            alarms=config.diagnose.alarms,
            max_rollbacks=config.diagnose.max_rollbacks if config.diagnose.rollback else 0,
            releases_cache=releases_cache,
        )

    async def _train(self, loop: Loop, state: State) -> Summary:
        """Success before, training, success after; an evaluation that is recorded is not run again."""
        held_out = self.tasks.held_out(self.config.eval.split, self.config.eval.episodes)
        if not self._evaluated("before"):
            await loop.evaluate("before", held_out, 0)
        state = await loop.run(state)
        if state.step < self.config.train.steps:
            return {"finished": False, "steps": state.step}
        if not self._evaluated("after"):
            await loop.evaluate("after", held_out, state.step)
        rows = self.folder.read_metrics()
        summary = summarise(rows, seed=self.config.seed)
        self.folder.write_text("curve.svg", draw_learning_curve(rows, self.folder.path.name))
        if self.config.record.report:
            write_report(self.folder.path, summary=summary)
        self.folder.write_summary(summary)  # last: a run with a summary is finished
        return {"finished": True, **summary}

    def _evaluated(self, name: str) -> bool:
        return any(row.get("eval/name") == name for row in self.folder.read_metrics())


def summarise(rows: Sequence[dict[str, Any]], seed: int) -> Summary:
    """What `summary.json` holds. `wall_s` is training with its warm-up, not the evaluations before and after."""
    before = next(row for row in rows if row.get("eval/name") == "before")
    after = next(row for row in rows if row.get("eval/name") == "after")
    steps = [row for row in rows if "rollout/episodes" in row]
    between = [row for row in rows if row.get("eval/name") == "validation"]
    return {
        "success_before": before["eval/success"],
        "success_after": after["eval/success"],
        "interval": [after["eval/success_low"], after["eval/success_high"]],
        "wall_s": rows[0]["time/warmup_s"] + sum(row["time/total_s"] for row in [*steps, *between]),
        "steps": len(steps),
        "unscored": int(sum(row.get("rollout/members_unscored", 0) for row in steps)),
        "idle_steps": sum(explain_idle_step(row) is not None for row in steps),
        "episodes": int(sum(row["rollout/episodes"] for row in steps)),
        "tokens": int(sum(row["rollout/sampled_tokens"] for row in steps)),
        "seed": seed,
    }
