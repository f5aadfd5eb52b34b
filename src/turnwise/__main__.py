"""Entry point of the command `turnwise` and of `python -m turnwise`.

It imports little, so that Ctrl-C prints no traceback while Python imports the command line or shuts down.
"""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command line and return its exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_at_once)
    from turnwise.cli.main import main as run_command_line

    signal.signal(signal.SIGINT, before)
    try:
        return run_command_line()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command has ended; a second Ctrl-C would interrupt its exit


def exit_at_once(number: int, frame: FrameType | None) -> None:
    """Exit without an exception, whose traceback would show the import that it interrupted."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, b"turnwise: stopped\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
