"""The command line. A command's module is imported only when it runs, so that help and mistakes answer at once.

Exit codes: 0 done, 1 an unexpected failure (with its traceback), 2 something given was wrong (one line on stderr),
130 stopped by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP, 141 the reader of our output went away.
"""

import logging
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group

from turnwise.cli.commands import COMMANDS
from turnwise.cli.mistakes import explain
from turnwise.cli.options import DEFAULTS
from turnwise.cli.overrides import split_overrides
from turnwise.cli.signals import StopSignals
from turnwise.core.errors import UserError

HELP = """\
Train language-model agents that act over many turns.

turnwise train frozen_lake               learn, with live progress and a report
turnwise train sokoban --train.steps 50  any setting, as --SECTION.KEY VALUE
turnwise train my_env.py:GuessNumber     an environment of your own
turnwise eval RUN                        success rate with its interval
turnwise view                            runs in a browser, token by token
turnwise play sokoban                    play it yourself in the terminal

turnwise COMMAND --help says more of each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns the exit code. An unexpected exception goes through, with its traceback."""
    show_log()
    stop_signals = StopSignals()
    try:
        with stop_signals.handled():
            run(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
    except UserError as error:
        sys.stderr.write(f"turnwise: {' '.join(str(error).split())}\n")
        return 2
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"turnwise: {str(stop) or 'stopped'}\n")
        return 128 + stop_signals.received
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python's own last flush complains
        return 141
    return 0


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is at that moment: live progress puts itself between, and is then not torn."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


def show_log() -> None:
    """What the library says of work that takes long, such as a model's download, is shown to who waits for it."""
    log = logging.getLogger("turnwise")
    if not log.handlers:
        log.addHandler(_Stderr())
        log.setLevel(logging.INFO)


def run(tokens: Sequence[str]) -> None:
    """Parses, imports the command's module and calls it."""
    rest, overrides = split_overrides(tokens)
    try:
        command, bound, ignored = make_app().parse_args(rest)
    except CycloptsError as error:
        raise UserError(explain(error, list(COMMANDS))) from None
    if "overrides" in ignored:
        bound.arguments["overrides"] = overrides
    elif overrides:
        raise UserError(f"unknown option --{overrides[0][0]}: this command takes no settings")
    command(*bound.args, **bound.kwargs)


def make_app() -> App:
    app = App(
        name="turnwise",
        help=HELP,
        help_format="plaintext",
        version=_version,
        group_commands=Group("Other", sort_key=2),
        default_parameter=DEFAULTS,
        exit_on_error=False,
        print_error=False,
    )
    for position, (name, command) in enumerate(COMMANDS.items()):
        app.command(command.path, name=name, group=command.group, help=command.help, sort_key=position)
    return app


def _version() -> str:
    from turnwise import __version__

    return f"turnwise {__version__}"
