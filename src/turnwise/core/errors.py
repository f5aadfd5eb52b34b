"""Errors for users, whose message says what is wrong and what to do, and failures of environments and services."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Invalid input of the user. The command line prints only the message and exits with 2."""


class Outage(UserError):
    """A service that the run depends on is unavailable. The settings are valid; resume the run once it is back."""


class DivergedError(UserError):
    """Weights are not finite, or gradients in several optimizer steps. Nothing of that step may be saved."""


class ImageError(UserError):
    """`tw.Image` cannot use its source. The argument states what the source is, and what to give instead."""

    def __str__(self) -> str:
        return f"tw.Image got {self.args[0]}"


class LearnerLost(Exception):
    """A process of the learner died. The weights since the last checkpoint are gone; training continues from there."""


class EnvironmentFailure(Exception):
    """The environment failed. The member is retried and never trained on as reward 0."""


class InfrastructureFailure(Exception):
    """An engine, tool server or network failed. The member is retried and never trained on as reward 0."""


class RewardFailure(InfrastructureFailure):
    """The reward could not be computed. Distinct from environment failures."""


FOREIGN_ERRORS = (Exception, SystemExit)
"""Exceptions to catch around third-party and user code; `sys.exit(0)` there must not end the run. KeyboardInterrupt and
CancelledError pass."""


@contextmanager
def optional_packages(used_by: str, extra: str, *packages: str) -> Iterator[None]:
    """Explain how to install a package that an import in the block lacks. `extra`: the one of turnwise that has it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise UserError(f"{used_by} needs {error.name}. Run `pip install 'turnwise[{extra}]'`.") from error


def not_a_file(path: Path) -> str:
    """Return "PATH does not exist" or "PATH is not a file", for error messages."""
    return f"{path} is not a file" if path.exists() else f"{path} does not exist"


def read_failure(path: Path, error: OSError | UnicodeDecodeError) -> str:
    """Return why a file could not be read, for error messages."""
    if isinstance(error, UnicodeDecodeError):
        return f"{path} is not UTF-8 text"
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return not_a_file(path)
    return f"{path} cannot be read ({error.strerror or type(error).__name__})"


def format_times(count: int) -> str:
    """Return "once" or "n times", for error messages."""
    return "once" if count == 1 else f"{count} times"
