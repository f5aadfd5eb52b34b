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
from turnwise.record.rows import (
    AFTER,
    BEFORE,
    VALIDATION,
    HeldOutRecord,
    Record,
    SetUpRecord,
    select,
    training_s,
)
from turnwise.record.steps import StepRecord
from turnwise.report.progress import Progress
from turnwise.report.terminal import make_console
from turnwise.rollout.context_settings import Full
from turnwise.run.build import build_evaluator, build_policy_stack, build_renderer
from turnwise.run.build_learner import build_objective, build_optimizer
from turnwise.run.build_loop import build_saving_parts
from turnwise.run.demos import build_demonstrations, check_demos, hash_samples, hold_out
from turnwise.run.environment_mix import EnvironmentMix, build_environment_mix
from turnwise.run.find_model import use_own_adapter
from turnwise.run.load_policy import load_policy_of_run
from turnwise.run.resources import check_threads, memory_plan, plan_without_limits
from turnwise.run.restore import open_checkpoints, restore_or_init
from turnwise.run.training_run import (
    OnStep,
    Summary,
    TrainingRun,
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

SECTIONS = ("env", "model", "lora", "sft", "eval", "checkpoint", "record", "system")
"""Sections of which SFT uses every setting, except PICTURES."""
PICTURES = "record.pictures_every"
KEYS = (
    "seed",
    "train.micro_tokens",
    "train.optimizer_state",
    "train.recompute",
    "train.max_minutes",
    "train.optimizer.weight_decay",
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
    "sft.think",
    "rollout.max_new_tokens",
    "rollout.in_flight",
    "rollout.timeout_s",
    "rollout.attempts",
    "rollout.stop",
    "model.warmup_steps",
)
"""Sections and settings without effect if there is no environment."""
HELD_OUT_SHARE = 0.05
"""Without an environment: share of the conversations whose loss is measured instead of trained on."""
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
    environments = build_environment_mix(config.env, config.agent)
    resumed = config.record.path if resume else None
    check_sft(config if resumed is None else use_own_adapter(config, resumed), environments, override_keys)
    check_servers(environments.with_params)
    config = resolve(config)
    run = _SftRun(config, environments, console or make_console(), on_step)
    run.train_arguments = train_arguments or [config.env.kind if config.env.kind in recipe_names() else "RECIPE"]
    return run.run(resume)


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
        if name == PICTURES:
            raise UserError(f"{key} has no effect on SFT, which draws no pictures. Remove it.")
        if key.partition(".")[0] not in SECTIONS and name not in KEYS:
            raise UserError(
                f"{key} has no effect on SFT, which uses {', '.join(SECTIONS)}, {', '.join(KEYS)}. Remove it."
            )
        if not environments.specs and (name in ENV_ONLY or name.partition(".")[0] in ENV_ONLY):
            raise UserError(f"{key} has no effect without an environment. Remove it, or name an environment.")
    if not isinstance(config.context, Full):
        raise UserError(f"SFT trains on whole demonstrations, and context is {config.context.kind}. Choose full.")
    if config.sft.demos is None:
        raise UserError("sft.demos is not set. Give solver, a run, or a file of conversations.")
    check_demos(config.sft.demos, config.sft.count, environments)


class _SftRun(TrainingRun):
    method = "sft"
    train_arguments: Sequence[str]
    """Recipe and settings of its tasks, for the suggested `turnwise train` command."""

    def __post_init__(self) -> None:
        self.planned_steps = 1  # until the demonstrations are counted

    def advise_finished(self, path: Path) -> str:
        return f"To train its model: `{self.next_command(path)}`"

    def next_command(self, path: Path) -> str:
        return spell_command("train", *self.train_arguments, "--model.name", path)

    def build(self, progress: Progress, resume: bool) -> tuple[SftLoop, State]:
        config = self.config
        loaded, warmup_s = load_policy_of_run(config, self.environments, self.folder.path, progress)
        plan = memory_plan(config, loaded.model, sft=True)
        has_env = bool(self.environments.specs)
        stack = build_policy_stack(config, self.environments, loaded, plan.pages) if has_env else None
        renderer = stack.renderer if stack is not None else build_renderer(config.rollout, loaded)
        demonstrations = build_demonstrations(
            config,
            self.environments,
            loaded,
            renderer,
            lambda done, total: progress.phase("demonstrations", done, total),
        )
        share = 0.0 if has_env else HELD_OUT_SHARE
        self.samples, self.held_out = hold_out(demonstrations, share, config.seed)
        settings = SftSettings(
            batch=config.sft.batch, epochs=config.sft.epochs, seed=config.seed, micro_tokens=plan.micro_tokens
        )
        steps = count_steps(len(self.samples), settings)
        learner = build_sft_learner(config, loaded.model, steps, plan)
        checkpoints = open_checkpoints(config.checkpoint, loaded, self.folder)
        state = restore_or_init(config.model, checkpoints, learner, self.folder, resume=resume, note=progress.note)
        self._check_same_samples(warmup_s)
        self.evaluator = SftEvaluator(
            learner=learner,
            engine=stack.engine if stack is not None else None,
            evaluator=build_evaluator(stack, config.record, self.folder, progress) if stack is not None else None,
            held_out=self.held_out,
            micro_tokens=plan.micro_tokens,
            folder=self.folder,
            progress=progress,
        )
        parts: list[Part] = [RunFiles(self.folder), ProgressDisplay(progress, self.folder, total=steps)]
        if plan.releases_cache and stack is not None:
            parts.append(ReleaseCaches([stack.engine]))
        parts += build_saving_parts(
            config.eval,
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
        digest, records = hash_samples([*self.samples, *self.held_out]), self.folder.read_records()
        if not records:
            self.folder.append_metrics(SetUpRecord(warmup_s=warmup_s, digest=digest))
        elif digest not in [record.digest for record in select(records, SetUpRecord)]:
            raise UserError(
                f"{self.config.sft.demos} has changed since {self.folder.path} started. Restore it, or start a new run."
            )

    def summarise(self, records: Sequence[Record]) -> Summary:
        if self.environments.specs:
            return summarise(records, len(self.samples), self.config.seed)
        return summarise_loss(records, len(self.samples), len(self.held_out), self.config.seed)


def build_sft_learner(config: Config, model: Any, steps: int, plan: MemoryPlan | None = None) -> LocalLearner:
    plan = plan or plan_without_limits(config.train)
    mark_embeddings(model)
    if plan.recompute:
        recompute_layers(model)
    schedule = Schedule(
        kind="linear", total_steps=steps, warmup_steps=int(WARMUP_SHARE * steps), final_share=FINAL_SHARE
    )
    optimizer = build_optimizer(config.train, model.parameters(), config.sft.learning_rate, schedule, plan)
    plain = config.algo.model_copy(update={"loss": Reinforce(), "correction": NoCorrection(), "entropy_coef": 0.0})
    objective = build_objective(plain, config.critic)
    return LocalLearner(model, objective, optimizer)


def summarise(records: Sequence[Record], count: int, seed: int) -> Summary:
    """Return the contents of `summary.json`."""
    return summarise_success(records, seed) | summarise_tokens(select(records, StepRecord), count)


def summarise_loss(records: Sequence[Record], count: int, held_out: int, seed: int) -> Summary:
    """Return the contents of `summary.json` without an environment. Losses are None if nothing was held out."""
    steps = select(records, StepRecord)
    losses = {name: loss for record in select(records, HeldOutRecord) for name, loss in record.losses.items()}
    return {
        "loss_before": losses.get(BEFORE),
        "loss_after": losses.get(AFTER),
        "wall_s": sum(map(training_s, records)),
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
