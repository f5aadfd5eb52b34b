"""`turnwise train` and `turnwise sft`."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from turnwise.cli.output import print_line, print_table
from turnwise.cli.parsing import INFORMATION, INPUT, Settings, command_app, merge_settings
from turnwise.core.errors import UserError

if TYPE_CHECKING:  # takes longer to import than help to print
    from turnwise.config.schema import Config

COMMON_SETTINGS = {
    "--env.params.NAME": ("{}", "Parameters of the environment; `turnwise envs NAME` lists them."),
    "--model.name": (
        '"tiny"',
        '"tiny", "tiny_vlm", "smollm2-135m", "smollm2-135m-vision", a Hugging Face name or folder, or a GGUF file.',
    ),
    "--rollout.groups": ("8", "Tasks per step."),
    "--rollout.group_size": ("16", "Episodes per task."),
    "--algo.advantage": ('"grpo"', "Advantage estimator."),
    "--train.steps": ("200", "Training steps: each rolls out groups x group_size episodes, then updates the policy."),
    "--train.learning_rate": ("1e-06", "Peak learning rate of the policy."),
    "--eval.every": (
        "0",
        "Steps between evaluations on the validation split; 0 evaluates only before and after training.",
    ),
}
"""Option -> its default and its help. Copied from the schema, which takes longer to import than help to print; a test
keeps both equal."""
HELP_WIDTH = 100


def describe_common_settings() -> str:
    """Return the settings that are changed most often, and how to list the others."""
    width = shutil.get_terminal_size().columns
    lines = ["Common settings with their defaults (a recipe may have others):"]
    for option, (default, doc) in COMMON_SETTINGS.items():
        start = f"  {option:<23} {default:<8} "
        lines += textwrap.wrap(doc, width=width, initial_indent=start, subsequent_indent=" " * len(start))
    lines.append("turnwise train --help-all describes all settings.")
    lines.append("turnwise train RECIPE --dry-run prints all values of a recipe.")
    return "\n".join(lines)


def print_all_settings() -> None:
    """Print every setting with its default, and its description below, wrapped to at most `HELP_WIDTH` columns."""
    from turnwise.config.keys import all_keys, show_value

    width = min(shutil.get_terminal_size(fallback=(HELP_WIDTH, 24)).columns, HELP_WIDTH)
    wrapper = textwrap.TextWrapper(width, subsequent_indent="    ", break_on_hyphens=False)
    for key in all_keys().values():
        print_line(wrapper.fill(f"{key.option} {show_value(key.default)}"))
        kinds = f"{', '.join(key.kinds)}: " if key.kinds else ""
        print_line(wrapper.fill(f"    {kinds}{key.doc} ({key.allowed})"))
    print_line("\nturnwise train RECIPE --dry-run prints the values of a recipe; turnwise envs NAME lists env.params")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """Options of both commands."""

    like: Annotated[str | None, Parameter(metavar="RECIPE", group=INPUT)] = None
    """Recipe whose settings to take, except its environment and token limits."""
    resume: Annotated[str | None, Parameter(metavar="RUN", group=INPUT)] = None
    """Run to continue from its last checkpoint, in place of a recipe."""
    seed: int | None = None
    """Random seed; equal seeds give equal runs."""
    max_minutes: Annotated[float | None, Parameter(metavar="N")] = None
    """Training time limit in minutes; the stopped run is evaluated and can be resumed."""
    price: Annotated[float | None, Parameter(metavar="N")] = None
    """Price of an hour of a GPU, or of a machine without one; shows the cost in plan, progress and summary."""
    name: Annotated[str | None, Parameter(metavar="NAME")] = None
    """Name of the run folder."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainArguments(RunArguments):
    """Options of `turnwise train`."""

    start_from: Annotated[str | None, Parameter(name="--from", metavar="RUN", group=INPUT)] = None
    """Run whose settings the new run takes, in place of a recipe."""
    data: Annotated[str | None, Parameter(metavar="RUN,FILE", group=INPUT)] = None
    """Runs, files and dataset folders whose episodes to train on instead of playing (data.sources)."""
    reward: Annotated[str | None, Parameter(metavar="NAME", group=INPUT)] = None
    """Reward of the answers to a dataset's tasks (env.params.reward): FILE.py:function or a name like exact_match."""
    seeds: Annotated[str | None, Parameter(metavar="0,1,2")] = None
    """Random seeds for several runs, one after another, with one table over them."""


NO_RUN_ARGUMENTS = RunArguments()
NO_TRAIN_ARGUMENTS = TrainArguments()

TASK_SECTIONS = ("env", "rollout", "context")
"""Sections whose settings `turnwise train` needs too after `turnwise sft`, to train on the same tasks."""

train_app = command_app("train", "RECIPE [OPTIONS] [--SECTION.KEY VALUE]...", epilogue=describe_common_settings())
sft_app = command_app("sft", "[RECIPE] [OPTIONS] [--SECTION.KEY VALUE]...")


@train_app.default
def train(
    recipe: str | None = None,
    /,
    *,
    run: TrainArguments = NO_TRAIN_ARGUMENTS,
    dry_run: Annotated[bool, Parameter(group=INFORMATION)] = False,
    json_output: Annotated[bool, Parameter(name="--json", group=INFORMATION)] = False,
    help_all: Annotated[bool, Parameter(group=INFORMATION)] = False,
    overrides: Settings = (),
) -> None:
    """Train an agent.

    Parameters
    ----------
    recipe
        Recipe, environment, FILE.toml with your own settings, FILE.py:Class, or a dataset of tasks: FILE.jsonl,
        a folder or hf://datasets/OWNER/NAME.
    dry_run
        Check and print all settings, without training. Also checks that servers respond, that a model on the Hugging
        Face hub exists, and that optional packages are installed. Also prints the plan: the number of episodes, the
        time if a run with the same work was measured, and the memory of the GPU or of each GPU of a cluster.
    json_output
        With --dry-run: print settings and plan as one JSON object.
    help_all
        Describe all settings.
    """
    if help_all:
        print_all_settings()
        return
    if json_output and not dry_run:
        raise UserError("--json has an effect with --dry-run. Add it, or remove --json.")
    resume = run.resume is not None
    if run.seeds is not None and (other := "--seed" if run.seed is not None else "--resume" if resume else None):
        raise UserError(f"--seeds starts one run per seed and cannot be combined with {other}: remove one of them.")
    settings = merge_settings(
        overrides,
        seed=run.seed,
        data__sources=run.data,
        env__params__reward=run.reward,
        train__max_minutes=run.max_minutes,
        record__price=run.price,
        record__name=run.name,
    )
    from turnwise.run.configure import configure

    config = configure(recipe, like=run.like, start_from=run.start_from, resume=run.resume, overrides=settings)
    several_seeds = _check_before_torch(config, run.seeds, resume=resume)
    override_keys = [key for key, _ in overrides]
    if dry_run:
        _print_plan(config, override_keys, resume=resume, as_json=json_output)
        return
    _start_runs(config, several_seeds, override_keys, resume=resume)


def _start_runs(config: "Config", several_seeds: Sequence[int], override_keys: Sequence[str], *, resume: bool) -> None:
    """Try the environments before torch is imported, and train."""
    from turnwise.report.terminal import make_console
    from turnwise.run.trial_episodes import try_before_torch

    console = make_console()
    tried = not resume and try_before_torch(config, console.print)
    from turnwise.run.train import train as train_run
    from turnwise.run.train import train_seeds

    if several_seeds:
        train_seeds(config, several_seeds, console, override_keys, tried=tried)
    else:
        train_run(config, resume=resume, console=console, override_keys=override_keys, tried=tried)


def _check_before_torch(config: "Config", seeds: str | None, *, resume: bool) -> tuple[int, ...]:
    """Check what needs no torch, names first, which need no numpy either; return the seeds of several runs."""
    from turnwise.config.load import parse_seeds
    from turnwise.run.setting_names import check_before_torch

    check_before_torch(config, resume=resume)
    from turnwise.run.run_name import check_run_name, configs_of_seeds

    several_seeds = () if seeds is None else parse_seeds(seeds)
    for one in configs_of_seeds(config, several_seeds) if several_seeds else [] if resume else [config]:
        check_run_name(one.record)
    return several_seeds


def _print_plan(config: "Config", override_keys: Sequence[str], *, resume: bool, as_json: bool) -> None:
    """Check and print the settings of a run, and what it will need."""
    from turnwise.config.keys import describe, settings_of
    from turnwise.run.environment_mix import build_environment_mix
    from turnwise.run.plan import plan_run
    from turnwise.run.validate import check_hub, check_run

    check_run(config, build_environment_mix(config.env, config.agent), override_keys, resume=resume)
    check_hub(config.model)
    plan = plan_run(config)
    if as_json:
        settings = {setting.key: setting.value for setting in settings_of(config)}
        print_line(json.dumps({"settings": settings, "plan": plan.to_json()}))
        return
    print_line(describe(config))
    print_line()
    for line in plan.lines:
        print_line(f"# {line}")
    if plan.memory_rows:
        print_line()
        print_table(plan.memory_headers, plan.memory_rows)


@sft_app.default
def sft(
    recipe: str | None = None,
    /,
    *,
    demos: Annotated[str | None, Parameter(metavar="solver|RUN", group=INPUT)] = None,
    data: Annotated[str | None, Parameter(metavar="FILE", group=INPUT)] = None,
    count: int | None = None,
    epochs: int | None = None,
    run: RunArguments = NO_RUN_ARGUMENTS,
    overrides: Settings = (),
) -> None:
    """Fine-tune on demonstrations.

    Parameters
    ----------
    recipe
        Recipe, environment, FILE.toml with your own settings, or FILE.py:Class.
    demos
        Demonstrations: the environment's solver (default), or the successful episodes of a run.
    data
        File of conversations (JSONL, JSON, CSV, Parquet) instead of demos: messages, prompt and completion, ShareGPT.
        Needs no recipe; without one, the loss of held-out conversations is measured instead of success.
    count
        Maximum number of demonstrations (sft.count).
    epochs
        Passes over the demonstrations (sft.epochs).
    """
    if data is not None and demos is not None:
        raise UserError("--data and --demos both name the demonstrations: remove one of them.")
    resume = run.resume is not None
    if recipe is None and not resume and data is None:
        raise UserError("Name a recipe or an environment, or give --data FILE to train on conversations alone.")
    settings = merge_settings(
        overrides,
        seed=run.seed,
        sft__demos=demos or data or (None if resume else "solver"),
        sft__count=count,
        sft__epochs=epochs,
        train__max_minutes=run.max_minutes,
        record__price=run.price,
        record__name=run.name,
    )
    from turnwise.envs.settings import NO_ENV
    from turnwise.run.configure import configure
    from turnwise.run.demo_source import check_demos_source
    from turnwise.run.setting_names import check_before_torch

    target = NO_ENV if recipe is None and not resume else recipe
    config = configure(target, like=run.like, resume=run.resume, overrides=settings, full_context=True)
    check_before_torch(config, resume=resume)
    if config.sft.demos is not None:
        check_demos_source(config.sft.demos, has_environment=config.env.kind != NO_ENV)
    from turnwise.run.sft import sft as run_sft

    of_task = [(key, value) for key, value in overrides if key.partition(".")[0] in TASK_SECTIONS]
    options = [word for key, value in of_task for word in (f"--{key}", value)]
    train_arguments = [] if recipe is None else [recipe, *options]
    run_sft(config, resume=resume, override_keys=[key for key, _ in overrides], train_arguments=train_arguments)
