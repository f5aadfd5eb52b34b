"""Entry point of the command line. A command's module is imported only when the command runs, so that help and errors
appear at once.

Exit codes: 0 success, 1 unexpected error (with its traceback), 2 wrong input (one line on stderr), 130 stopped by
Ctrl-C, 143 by SIGTERM, 129 by SIGHUP, 141 the reader of the output closed the pipe.
"""

import logging
import os
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group

from turnwise.cli.commands import COMMANDS
from turnwise.cli.output import print_line
from turnwise.cli.parsing import DEFAULTS, explain, split_overrides
from turnwise.cli.signals import StopSignals
from turnwise.core.errors import EnvironmentFailure, UserError

TRACEBACK = "--traceback"
HELP = """\
Train language-model agents that act over many turns.

turnwise train frozen_lake               train, with live progress and a report
turnwise train sokoban --train.steps 50  change any setting: --SECTION.KEY VALUE
turnwise train my_env.py:GuessNumber     train on your own environment
turnwise eval RUN                        success rate with confidence interval
turnwise view                            browse runs down to single tokens
turnwise play sokoban                    play an environment in the terminal

turnwise COMMAND --help shows the options of a command.
turnwise COMMAND --traceback shows the traceback of an error, such as a bug in your environment.
turnwise --version --full shows versions and hardware, for a bug report."""
VERSION, FULL = "--version", "--full"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code. Unexpected exceptions propagate with their traceback."""
    log_to_stderr()
    tokens, shows_traceback = _take_traceback(sys.argv[1:] if argv is None else argv)
    stop_signals = StopSignals()
    try:
        with stop_signals.handled():
            run(tokens)
            sys.stdout.flush()
    except (UserError, EnvironmentFailure) as error:
        if shows_traceback:
            traceback.print_exception(error)
        is_bug = isinstance(error, EnvironmentFailure) or isinstance(error.__cause__, EnvironmentFailure)
        message = " ".join(str(error).split())
        if is_bug and not shows_traceback:
            message = f"{message.removesuffix('.')}. {TRACEBACK} shows the traceback."
        sys.stderr.write(f"turnwise: {message}\n")
        return 2
    except PermissionError as error:
        if error.filename is None or shows_traceback:
            raise
        sys.stderr.write(
            f"turnwise: {error.filename}: permission denied. Change its permissions, or give another path.\n"
        )
        return 2
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"turnwise: {str(stop) or 'stopped'}\n")
        return 128 + stop_signals.received
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would fail again and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


def _take_traceback(tokens: Sequence[str]) -> tuple[list[str], bool]:
    """Split off --traceback, which every command takes."""
    end = tokens.index("--") if "--" in tokens else len(tokens)
    return [*(token for token in tokens[:end] if token != TRACEBACK), *tokens[end:]], TRACEBACK in tokens[:end]


class _StderrHandler(logging.Handler):
    """Looks up `sys.stderr` for each record, because live progress replaces it to print above its own lines."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


def log_to_stderr() -> None:
    """Print the library's log messages, which announce slow work such as downloading a model."""
    log = logging.getLogger("turnwise")
    if not log.handlers:
        log.addHandler(_StderrHandler())
        log.setLevel(logging.INFO)
    logging.getLogger("asyncio").addFilter(_is_no_stop)


def _is_no_stop(record: logging.LogRecord) -> bool:
    """Return False for the traceback of a task that Ctrl-C ended, which asyncio logs."""
    return record.exc_info is None or not isinstance(record.exc_info[1], KeyboardInterrupt)


def run(tokens: Sequence[str]) -> None:
    """Parse the tokens, import the command's module and call it."""
    if tokens[:1] == [VERSION]:
        print_version(tokens[1:])
        return
    rest, overrides = split_overrides(tokens)
    try:
        command, bound, ignored = make_app().parse_args(rest)
    except CycloptsError as error:
        raise UserError(explain(error, list(COMMANDS))) from None
    if "overrides" in ignored:
        bound.arguments["overrides"] = overrides
    elif overrides:
        raise UserError(f"Unknown option --{overrides[0][0]}: this command takes no settings.")
    command(*bound.args, **bound.kwargs)


def make_app() -> App:
    app = App(
        name="turnwise",
        help=HELP,
        help_format="plaintext",
        version="",  # printed by `print_version`; named here for the help text
        group_commands=Group("Other", sort_key=3),
        default_parameter=DEFAULTS,
        exit_on_error=False,
        print_error=False,
    )
    for position, (name, command) in enumerate(COMMANDS.items()):
        app.command(command.path, name=name, group=command.group, help=command.help, sort_key=position)
    return app


def print_version(options: Sequence[str]) -> None:
    """Print the version; with --full, also versions of other packages and the hardware."""
    if options and list(options) != [FULL]:
        raise UserError(f"Unexpected {options[0]}: {VERSION} takes only {FULL}")
    if options:
        from turnwise.run.versions import report_versions

        for name, found in report_versions():
            print_line(f"{name:<13} {found}")
        return
    from turnwise import __version__

    print_line(f"turnwise {__version__}")
