"""`turnwise sft`: supervised fine-tuning on demonstrations of a solver, of a run's successes, or from a file.

A file needs no environment: instead of success, the loss of held-out conversations is measured.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from turnwise.algos.losses import Reinforce
from turnwise.algos.off_policy import NoCorrection
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.models.layers import recompute_layers
from turnwise.models.memory.plan import MemoryPlan
from turnwise.recipes.presets import recipe_names
from turnwise.record.steps import StepRecord, read_steps
from turnwise.report.progress import Progress
from turnwise.report.terminal import make_console
from turnwise.run.build import build_policy_stack, build_renderer
from turnwise.run.build_learner import build_objective, build_optimizer
from turnwise.run.build_loop import build_saving_parts
from turnwise.run.demos import build_demonstrations, check_demos, hash_samples, hold_out
from turnwise.run.environment_mix import EnvironmentMix, build_environment_mix
from turnwise.run.resources import check_threads, memory_plan, plan_without_limits
from turnwise.run.restore import open_checkpoints, restore_or_init
from turnwise.run.run_name import check_run_name
from turnwise.run.sources import use_own_adapter
from turnwise.run.training_run import (
    OnStep,
    Summary,
    TrainingRun,
    open_run,
    report_end,
    resolve,
    summarise_success,
)
from turnwise.run.validate import check_model, check_servers
from turnwise.text.command_line import spell_command
from turnwise.training.checkpoints import State
from turnwise.training.learner import LocalLearner
from turnwise.training.loop import ReleaseCaches
from turnwise.training.optimizer import Schedule, mark_embeddings
from turnwise.training.sft import SftEvaluator, SftLoop, SftSettings, count_steps
from turnwise.training.step import Part
from turnwise.training.step_record import ProgressDisplay, RunFiles
from turnwise.training.validation import VALIDATION

SECTIONS = ("env", "model", "lora", "sft", "eval", "checkpoint", "record", "system")
"""Sections of which SFT uses every setting, except UNUSED."""
UNUSED = ("record.pictures_every", "record.pictures_per_step")
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
    "rollout.prefix",
)
"""Settings of other sections that SFT uses."""
ENV_ONLY = (
    "env",
    "eval.episodes",
    "eval.temperature",
    "eval.top_p",
    "eval.top_k",
    "eval.split",
    "checkpoint.keep_best",
    "sft.think",
    "rollout.max_new_tokens",
    "rollout.in_flight",
    "rollout.timeout_s",
    "rollout.attempts",
    "rollout.stop",
    "model.warmup_steps",
)
"""Sections and settings without effect if there is no environment."""
WARMUP_SHARE = 0.03
"""Share of the steps in which the learning rate rises."""
FINAL_SHARE = 0.1
"""Share of the learning rate at the last step."""


def sft(
    config: Config,
    *,
    resume: bool = False,
    console: Console | None = None,
    override_keys: Iterable[str] = (),
    train_arguments: Sequence[str] = (),
    on_step: OnStep | None = None,
) -> Summary:
    """Fine-tune on demonstrations and return the summary.

    `override_keys` are the settings that the user gave explicitly; one without effect is an error.
    `train_arguments` are the recipe and the settings of its tasks, for the suggested `turnwise train` command.
    """
    environments = build_environment_mix(config)
    run = Path(config.record.folder) / (config.record.name or "")
    if not resume:
        check_run_name(config)
    check_sft(use_own_adapter(config, run) if resume else config, environments, override_keys)
    check_servers(environments.with_params)
    console = console or make_console()
    config = resolve(config)
    arguments = train_arguments or [config.env.kind if config.env.kind in recipe_names() else "RECIPE"]
    with open_run(
        config,
        environments,
        console,
        method="sft",
        resume=resume,
        if_finished=lambda path: f"To train its model: `{spell_command('train', *arguments, '--model.name', path)}`",
    ) as folder:
        summary, path = _SftRun(config, environments, folder, console, on_step).train(resume), folder.path
    advice = spell_command("train", *arguments, "--model.name", path)
    report_end(config, summary, path, console, advice=advice)
    return summary | {"path": str(path)}


def check_sft(config: Config, environments: EnvironmentMix, override_keys: Iterable[str] = ()) -> None:
    if environments.has_agent:
        raise UserError(
            "SFT does not run agents. Fine-tune with `turnwise sft --data FILE`, then train the agent with "
            "model.name RUN."
        )
    check_model(config.model)
    check_threads(config.system)
    for key in override_keys:
        name = key.replace("-", "_")
        if name in UNUSED:
            raise UserError(f"{key} has no effect on SFT, which draws no pictures. Leave it out.")
        if key.partition(".")[0] not in SECTIONS and name not in KEYS:
            raise UserError(
                f"{key} has no effect on SFT, which uses {', '.join(SECTIONS)}, {', '.join(KEYS)}. Leave it out."
            )
        if not environments.specs and (name in ENV_ONLY or name.partition(".")[0] in ENV_ONLY):
            raise UserError(f"{key} has no effect without an environment. Leave it out, or name an environment.")
        if environments.specs and name == "sft.held_out":
            raise UserError(f"{key} has no effect with an environment, where success is measured. Leave it out.")
    if config.context.mode != "full":
        raise UserError(f"SFT trains on whole demonstrations, and context.mode is {config.context.mode}. Choose full.")
    if config.sft.demos is None:
        raise UserError("sft.demos is not set. Give solver, a run, or a file of conversations.")
    check_demos(config.sft.demos, config.sft.count, environments)


class _SftRun(TrainingRun):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.planned_steps = 1  # until the demonstrations are counted

    def build(self, progress: Progress, resume: bool) -> tuple[SftLoop, State]:
        config = self.config
        loaded, warmup_s = self.load_policy(progress)
        plan = memory_plan(config, loaded.model, sft=True)
        has_env = bool(self.environments.specs)
        stack = build_policy_stack(config, self.environments, loaded, plan.pages) if has_env else None
        renderer = stack.renderer if stack is not None else build_renderer(config, loaded)
        demonstrations = build_demonstrations(
            config,
            self.environments,
            loaded,
            renderer,
            lambda done, total: progress.phase("demonstrations", done, total),
        )
        share = 0.0 if has_env else config.sft.held_out
        self.samples, self.held_out = hold_out(demonstrations, share, config.seed)
        settings = SftSettings(
            batch=config.sft.batch, epochs=config.sft.epochs, seed=config.seed, micro_tokens=plan.micro_tokens
        )
        steps = count_steps(len(self.samples), settings)
        learner = build_sft_learner(config, loaded.model, steps, plan)
        checkpoints = open_checkpoints(config, loaded, self.folder)
        state = restore_or_init(config, checkpoints, learner, self.folder, resume=resume, note=progress.note)
        self._check_same_samples(warmup_s)
        self.evaluator = SftEvaluator(
            learner=learner,
            engine=stack.engine if stack is not None else None,
            evaluator=self.build_evaluator(stack, progress) if stack is not None else None,
            held_out=self.held_out,
            micro_tokens=plan.micro_tokens,
            folder=self.folder,
            progress=progress,
        )
        parts: list[Part] = [RunFiles(self.folder), ProgressDisplay(progress, self.folder, total=steps)]
        if plan.releases_cache and stack is not None:
            parts.append(ReleaseCaches([stack.engine]))
        parts += build_saving_parts(
            config,
            learner,
            checkpoints,
            self.folder,
            steps=steps,
            validate=partial(self.evaluator.evaluate, VALIDATION, self.eval_tasks("validation")),
        )
        loop = SftLoop(settings=settings, samples=self.samples, learner=learner, parts=parts, seconds=progress.limit_s)
        return loop, state

    async def evaluate(self, name: str, step: int) -> None:
        await self.evaluator.evaluate(name, self.eval_tasks(self.config.eval.split), step)

    def _check_same_samples(self, warmup_s: float) -> None:
        """Raise UserError if a resumed run has other demonstrations than it started with."""
        digest, rows = hash_samples([*self.samples, *self.held_out]), self.folder.read_metrics()
        if not rows:
            self.folder.append_metrics({"step": 0, "time/warmup_s": warmup_s, "sft/digest": digest})
        elif rows[0].get("sft/digest") != digest:
            raise UserError(
                f"{self.config.sft.demos} has changed since {self.folder.path} started. Restore it, or start a new run."
            )

    def summarise(self, rows: Sequence[dict[str, Any]]) -> Summary:
        if self.environments.specs:
            return summarise(rows, len(self.samples), self.config.seed)
        return summarise_loss(rows, len(self.samples), len(self.held_out), self.config.seed)


def build_sft_learner(config: Config, model: Any, steps: int, plan: MemoryPlan | None = None) -> LocalLearner:
    plan = plan or plan_without_limits(config)
    mark_embeddings(model)
    if plan.recompute:
        recompute_layers(model)
    schedule = Schedule(
        kind="linear", total_steps=steps, warmup_steps=int(WARMUP_SHARE * steps), final_share=FINAL_SHARE
    )
    optimizer = build_optimizer(config.train, model.parameters(), config.sft.learning_rate, schedule, plan)
    plain = config.algo.model_copy(update={"loss": Reinforce(), "correction": NoCorrection(), "entropy_coef": 0.0})
    objective = build_objective(config.model_copy(update={"algo": plain}))
    return LocalLearner(model, objective, optimizer)


def summarise(rows: Sequence[dict[str, Any]], count: int, seed: int) -> Summary:
    """Return the contents of `summary.json`."""
    steps = read_steps(rows)
    return summarise_success(rows, steps, seed) | summarise_tokens(steps, count)


def summarise_loss(rows: Sequence[dict[str, Any]], count: int, held_out: int, seed: int) -> Summary:
    """Return the contents of `summary.json` without an environment. Losses are None if nothing was held out."""
    steps = read_steps(rows)
    before, after = (
        next((row[key] for row in rows if key in row), None) for key in ("held_out/before", "held_out/after")
    )
    return {
        "loss_before": before,
        "loss_after": after,
        "wall_s": rows[0]["time/warmup_s"] + sum(record.time["total_s"] for record in steps),
        "steps": len(steps),
        "seed": seed,
        "held_out": held_out,
    } | summarise_tokens(steps, count)


def summarise_tokens(steps: Sequence[StepRecord], count: int) -> Summary:
    return {
        "demonstrations": count,
        "answer_tokens": int(sum(record.training["answer_tokens"] for record in steps)),
        "loss": steps[-1].training["loss"],
    }
