"""`turnwise train` and `turnwise sft`."""

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
    name: Annotated[str | None, Parameter(metavar="NAME")] = None
    """Name of the run folder."""


NO_RUN_ARGUMENTS = RunArguments()

TASK_SECTIONS = ("env", "rollout", "context")
"""Sections whose settings `turnwise train` needs too after `turnwise sft`, to train on the same tasks."""

train_app = command_app("train", "RECIPE [OPTIONS] [--SECTION.KEY VALUE]...", epilogue=describe_common_settings())
sft_app = command_app("sft", "[RECIPE] [OPTIONS] [--SECTION.KEY VALUE]...")


@train_app.default
def train(
    recipe: str | None = None,
    /,
    *,
    start_from: Annotated[str | None, Parameter(name="--from", metavar="RUN", group=INPUT)] = None,
    data: Annotated[str | None, Parameter(metavar="RUN,FILE", group=INPUT)] = None,
    run: RunArguments = NO_RUN_ARGUMENTS,
    seeds: Annotated[str | None, Parameter(metavar="0,1,2")] = None,
    dry_run: Annotated[bool, Parameter(group=INFORMATION)] = False,
    help_all: Annotated[bool, Parameter(group=INFORMATION)] = False,
    overrides: Settings = (),
) -> None:
    """Train an agent.

    Parameters
    ----------
    recipe
        Recipe, environment, FILE.toml with your own settings, or FILE.py:Class.
    start_from
        Run whose settings the new run takes, in place of a recipe.
    data
        Runs, files and dataset folders whose episodes to train on instead of playing (data.sources).
    seeds
        Random seeds for several runs, one after another, with one table over them.
    dry_run
        Check and print all settings, without training. Also checks that servers respond, that a model on the Hugging
        Face hub exists, and that optional packages are installed. With engines and learners on a cluster, also prints
        their memory per GPU.
    help_all
        Describe all settings.
    """
    if help_all:
        print_all_settings()
        return
    from turnwise.config.load import parse_seeds
    from turnwise.run.configure import configure
    from turnwise.run.setting_names import check_model_name

    resume = run.resume is not None
    if seeds is not None and (other := "--seed" if run.seed is not None else "--resume" if resume else None):
        raise UserError(f"--seeds starts one run per seed and cannot be combined with {other}: remove one of them")
    settings = merge_settings(
        overrides, seed=run.seed, data__sources=data, train__max_minutes=run.max_minutes, record__name=run.name
    )
    config = configure(recipe, like=run.like, start_from=start_from, resume=run.resume, overrides=settings)
    check_model_name(config)  # before torch is imported
    override_keys = [key for key, _ in overrides]
    several_seeds = parse_seeds(seeds) if seeds is not None else ()
    if dry_run:
        _print_plan(config, several_seeds, override_keys, resume=resume)
        return
    from turnwise.run.train import train as train_run
    from turnwise.run.train import train_seeds

    if several_seeds:
        train_seeds(config, several_seeds, override_keys=override_keys)
    else:
        train_run(config, resume=resume, override_keys=override_keys)


def _print_plan(config: "Config", seeds: Sequence[int], override_keys: Sequence[str], *, resume: bool) -> None:
    """Check and print the settings of a run, and the memory per GPU of one on a cluster."""
    from turnwise.config.keys import describe
    from turnwise.run.environment_mix import build_environment_mix
    from turnwise.run.run_name import check_run_name, configs_of_seeds
    from turnwise.run.validate import check_hub, check_run

    for one in configs_of_seeds(config, seeds) if seeds else [] if resume else [config]:
        check_run_name(one)
    check_run(config, build_environment_mix(config), override_keys, resume=resume)
    check_hub(config.model)
    print_line(describe(config))
    if config.cluster.engines and config.cluster.learners:
        from turnwise.run.cluster_report import report_memory

        memory = report_memory(config)
        print_line()
        print_table(memory.headers, memory.rows)


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
        File of conversations (.jsonl, .json, .csv) instead of demos: messages, prompt and completion, or ShareGPT.
        Needs no recipe; without one, the loss of held-out conversations is measured instead of success.
    count
        Maximum number of demonstrations (sft.count).
    epochs
        Passes over the demonstrations (sft.epochs).
    """
    if data is not None and demos is not None:
        raise UserError("--data and --demos both name the demonstrations: remove one of them")
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
        record__name=run.name,
    )
    from turnwise.config.schema import NO_ENV
    from turnwise.run.configure import configure
    from turnwise.run.setting_names import check_model_name

    target = NO_ENV if recipe is None and not resume else recipe
    config = configure(target, like=run.like, resume=run.resume, overrides=settings, full_context=True)
    check_model_name(config)  # before torch is imported
    from turnwise.run.sft import sft as run_sft

    of_task = [(key, value) for key, value in overrides if key.partition(".")[0] in TASK_SECTIONS]
    options = [word for key, value in of_task for word in (f"--{key}", value)]
    train_arguments = [] if recipe is None else [recipe, *options]
    run_sft(config, resume=resume, override_keys=[key for key, _ in overrides], train_arguments=train_arguments)
