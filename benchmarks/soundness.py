"""Results of `turnwise envs check` for the environments that need no files: a row for each.

    python benchmarks/soundness.py [NAME ...] [--tasks 6]

Agents   success of the solver, of random legal play and of one repeated action
Notes    checks that leave a decision to the reader, and those that were skipped are not counted
Failed   checks that failed
"""

import argparse
import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from turnwise.envs.catalogue import CATALOGUE
from turnwise.envs.registry import load_spec
from turnwise.testing.soundness import Finding, Verdict
from turnwise.testing.supervised import check_environment

NEED_FILES = ("tools", "openenv", "harbor", "verifiers")
SOLVER, RANDOM = "the solver gets the maximum", "random play is not enough"


def check(name: str, tasks: int) -> list[Finding]:
    spec = load_spec(name)
    return list(check_environment(spec.id, spec.check_params({}), num_tasks=tasks, step_s=60, check_s=600))


def row(name: str, findings: Sequence[Finding]) -> list[str]:
    details = {finding.check: finding.detail for finding in findings}

    def first(pattern: str, check: str) -> str:
        match = re.search(pattern, details[check])
        return match[1] if match else "-"

    def names(verdict: Verdict) -> str:
        return ", ".join(finding.check for finding in findings if finding.verdict is verdict) or "-"

    return [
        name,
        first(r"success (\S+),", SOLVER),
        first(r"random (\S+),", RANDOM),
        first(r"repeating (\d+%)", RANDOM),
        names(Verdict.NOTE),
        names(Verdict.FAILED),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="environments; default: all that are installed and need no files")
    parser.add_argument("--tasks", type=int, default=6)
    options = parser.parse_args()
    installed = [name for name in CATALOGUE if name not in NEED_FILES and not load_spec(name).install_command]
    table = Table("environment", "solver", "random", "repeated", "notes", "failed")
    for name in options.names or installed:
        table.add_row(*row(name, check(name, options.tasks)))
        Console(stderr=True).print(f"{name}: done")
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
