"""`turnwise sft`: imitates demonstrations, of a solver, of a run's own successes, or from a file."""

import asyncio
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.models.layers import recompute_layers
from turnwise.models.memory.plan import MemoryPlan
from turnwise.recipes.build import build_objective, build_players, load_policy
from turnwise.recipes.configure import recipe_names
from turnwise.recipes.demos import check_demos, demonstrations, digest_of
from turnwise.recipes.environment_mix import Worlds, task_source, worlds_of
from turnwise.recipes.memory import memory_plan, unplanned
from turnwise.recipes.open_run import opened, settled, standing, tracked
from turnwise.recipes.run import Summary
from turnwise.recipes.sources import use_own_adapter
from turnwise.recipes.validate import check_model, check_servers, check_threads
from turnwise.record.run_folder import RunFolder
from turnwise.record.trackers import check_trackers
from turnwise.report.html_report import write_report
from turnwise.report.progress import Progress
from turnwise.report.tables import run_table
from turnwise.report.terminal import make_console
from turnwise.training.checkpoints import State
from turnwise.training.learner import LocalLearner
from turnwise.training.optimizer import Optimizer, OptimizerSettings, Schedule, mark_tables
from turnwise.training.sft import SftLoop, SftSettings, steps_of
from turnwise.training.step_record import measure

SECTIONS = ("env", "model", "lora", "sft", "eval", "checkpoint", "record", "system")
"""All of these are read."""
EPISODES = ("record.trajectories", "record.pictures_every", "record.pictures_per_step")
"""Of `record`, what is not read."""
KEYS = (
    "seed",
    "train.micro_tokens",
    "train.optimizer_state",
    "train.recompute",
    "train.max_minutes",
    "train.betas",
    "train.weight_decay",
    "train.max_grad_norm",
    "rollout.max_new_tokens",
    "rollout.max_tokens",
    "rollout.in_flight",
    "rollout.timeout_s",
    "rollout.attempts",
    "rollout.stop",
)
"""And these."""
WARMUP_SHARE, FINAL_SHARE = 0.03, 0.1
"""Of the steps, in which the learning rate rises; and of the rate, at the end."""


def sft(
    config: Config,
    *,
    resume: bool = False,
    console: Console | None = None,
    given: Iterable[str] = (),
    recipe: str | None = None,
) -> Summary:
    """Imitates, and returns the summary, which is also in the run's folder.

    `given`: the settings that were typed; `recipe`: what was typed for them all, for the line that says what is next.
    """
    worlds = worlds_of(config)
    run = Path(config.record.folder) / (config.record.name or "")
    check_sft(use_own_adapter(config, run) if resume else config, worlds, given)
    check_servers(worlds.with_params)
    console = console or make_console()
    config, others = settled(config), "train its model further with --model.name PATH"
    with opened(config, worlds, console, method="sft", command="sft", resume=resume, finished=others) as folder:
        summary, path = _Imitation(config, worlds, folder, console).train(resume), folder.path
    if summary["finished"]:
        what = recipe or (config.env.kind if config.env.kind in recipe_names() else "FILE.toml")
        console.print(run_table(summary, path, next_line=f"turnwise train {shlex.quote(what)} --model.name {path}"))
    else:
        console.print(f"stopped after {summary['steps']} steps; go on with: turnwise sft --resume {path}")
    return summary


def check_sft(config: Config, worlds: Worlds, given: Iterable[str] = ()) -> None:
    check_model(config.model)
    check_threads(config.system)
    check_trackers(config.record.trackers)
    for key in given:
        name = key.replace("-", "_")
        if name in EPISODES:
            raise UserError(f"{key} has no effect here: imitation plays no episodes that are recorded")
        if key.partition(".")[0] not in SECTIONS and name not in KEYS:
            raise UserError(f"{key} has no effect here: imitation reads {', '.join(SECTIONS)}, {', '.join(KEYS)}")
    if config.context.mode != "full":
        raise UserError(f"demonstrations are shown whole, and context.mode is {config.context.mode}: choose full")
    if config.sft.demos is None:
        raise UserError("sft.demos says nothing to imitate: give solver, a run, or a JSONL file")
    check_demos(config.sft.demos, config.sft.count, worlds)


@dataclass
class _Imitation:
    config: Config
    worlds: Worlds
    folder: RunFolder
    console: Console

    def train(self, resume: bool) -> Summary:
        config = self.config
        torch.set_num_threads(config.system.threads)
        minutes = config.train.max_minutes
        limit_s = None if minutes is None else 60 * minutes
        with Progress(1, self.console, title=self.folder.path.name, limit_s=limit_s) as progress:
            loop, state = self._build(progress, limit_s, resume)
            with tracked(config, self.folder, progress.note, after=state.step if resume else None):
                return asyncio.run(self._train(loop, state, progress))

    def _build(self, progress: Progress, limit_s: float | None, resume: bool) -> tuple[SftLoop, State]:
        config = self.config
        self.tasks = task_source(config, self.worlds)
        loaded, warmup_s = load_policy(
            config, self.worlds, lambda done, total: progress.phase("warm-up", done, total), self.folder.path
        )
        plan = memory_plan(config, loaded.model, imitates=True)
        players = build_players(config, self.worlds, loaded, plan.pages)
        self.samples = demonstrations(
            config,
            self.worlds,
            loaded,
            players.renderer,
            lambda done, total: progress.phase("demonstrations", done, total),
        )
        settings = self._settings(limit_s, plan.micro_tokens)
        learner = build_imitator(config, loaded.model, steps_of(len(self.samples), settings), plan)
        checkpoints, state = standing(config, loaded, learner, self.folder, resume=resume, tell=progress.note)
        self._check_same(warmup_s)
        loop = SftLoop(
            settings=settings,
            samples=self.samples,
            evaluator=players.evaluator,
            learner=learner,
            checkpoints=checkpoints,
            folder=self.folder,
            progress=progress,
            rest=players.engine.sleep if plan.releases_cache else None,
        )
        return loop, state

    def _check_same(self, warmup_s: float) -> None:
        """A resumed run must imitate what it began with."""
        digest, rows = digest_of(self.samples), self.folder.read_metrics()
        if not rows:
            self.folder.append_metrics({"step": 0, "time/warmup_s": warmup_s, "sft/digest": digest})
        elif rows[0].get("sft/digest") != digest:
            raise UserError(
                f"{self.config.sft.demos} is not what {self.folder.path} began with: put it back, or start anew"
            )

    def _settings(self, limit_s: float | None, micro_tokens: int) -> SftSettings:
        config = self.config
        return SftSettings(
            batch=config.sft.batch,
            epochs=config.sft.epochs,
            seed=config.seed,
            micro_tokens=micro_tokens,
            eval_every=config.eval.every,
            eval_tasks=self.tasks.held_out("validation", config.eval.episodes),
            checkpoint_every=config.checkpoint.every,
            keep_best=config.checkpoint.keep_best,
            max_seconds=limit_s,
        )

    async def _train(self, loop: SftLoop, state: State, progress: Progress) -> Summary:
        """Success before, imitation, success after; an evaluation that is recorded is not run again."""
        held_out = self.tasks.held_out(self.config.eval.split, self.config.eval.episodes)
        for name in ("before", "after"):
            if name == "after":
                state = await loop.run(state)
                if state.step < loop.steps:
                    return {"finished": False, "steps": state.step}
            if not any(row.get("eval/name") == name for row in self.folder.read_metrics()):
                await measure(loop.evaluator, held_out, self.folder, progress, name=name, step=state.step)
        summary = summarise(self.folder.read_metrics(), len(self.samples), self.config.seed)
        if self.config.record.report:
            write_report(self.folder.path, summary=summary)
        self.folder.write_summary(summary)  # last: a run with a summary is finished
        return {"finished": True, **summary}


def build_imitator(config: Config, model: Any, steps: int, plan: MemoryPlan | None = None) -> LocalLearner:
    plan = plan or unplanned(config)
    mark_tables(model)
    if plan.recompute:
        recompute_layers(model)
    schedule = Schedule(
        kind="linear", total_steps=steps, warmup_steps=int(WARMUP_SHARE * steps), final_share=FINAL_SHARE
    )
    settings = OptimizerSettings(
        learning_rate=config.sft.learning_rate,
        betas=config.train.betas,
        weight_decay=config.train.weight_decay,
        max_grad_norm=config.train.max_grad_norm,
    )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    plain = config.algo.model_copy(update={"loss": "reinforce", "correction": "none", "entropy_coef": 0.0})
    objective = build_objective(config.model_copy(update={"algo": plain}))
    return LocalLearner(model, objective, Optimizer(trained, settings, schedule.share, on_host=plan.on_host))


def summarise(rows: Sequence[dict[str, Any]], count: int, seed: int) -> Summary:
    """What `summary.json` holds. `wall_s` is imitation with tiny's warm-up, not the evaluations before and after."""
    before, after = (next(row for row in rows if row.get("eval/name") == name) for name in ("before", "after"))
    steps = [row for row in rows if "train/loss" in row]
    between = [row for row in rows if row.get("eval/name") == "validation"]
    return {
        "success_before": before["eval/success"],
        "success_after": after["eval/success"],
        "interval": [after["eval/success_low"], after["eval/success_high"]],
        "wall_s": rows[0]["time/warmup_s"] + sum(row["time/total_s"] for row in [*steps, *between]),
        "steps": len(steps),
        "demonstrations": count,
        "answer_tokens": int(sum(row["train/answer_tokens"] for row in steps)),
        "loss": steps[-1]["train/loss"],
        "seed": seed,
    }
