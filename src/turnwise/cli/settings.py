"""The settings as help text."""

import shutil
import textwrap

from turnwise.cli.show import line
from turnwise.config.keys import Key, all_keys, show_value

MOST_USED = (
    "env.params",
    "model.name",
    "rollout.groups",
    "rollout.group_size",
    "algo.advantage",
    "train.steps",
    "train.learning_rate",
    "eval.every",
)

HELP_WIDTH = 100


def most_used() -> str:
    """The settings that are changed most often, and how to see the others."""
    width = shutil.get_terminal_size().columns
    lines = ["Settings most often changed, with their defaults (a recipe may have others):"]
    for key in (all_keys()[name] for name in MOST_USED):
        start = f"  {option(key):<23} {show_value(key.default):<8} "
        lines += textwrap.wrap(key.doc, width=width, initial_indent=start, subsequent_indent=" " * len(start))
    lines.append("turnwise train --help-all lists all settings with their meaning.")
    lines.append("turnwise train RECIPE --dry-run prints all values of a recipe.")
    return "\n".join(lines)


def print_all_settings() -> None:
    """Print every setting and its default, its meaning below, wrapped to at most 100 columns."""
    width = min(shutil.get_terminal_size(fallback=(HELP_WIDTH, 24)).columns, HELP_WIDTH)
    wrapper = textwrap.TextWrapper(width, subsequent_indent="    ", break_on_hyphens=False)
    for key in all_keys().values():
        line(wrapper.fill(f"{option(key)} {show_value(key.default)}"))
        line(wrapper.fill(f"    {key.doc} ({key.allowed})"))
    line("\nturnwise train RECIPE --dry-run prints the values of a recipe; turnwise envs NAME lists env.params")


def option(key: Key) -> str:
    return f"--{key.name}.NAME" if "object" in key.types else f"--{key.name}"
