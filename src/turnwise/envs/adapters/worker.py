"""The other process: holds the worlds of one package and answers one request at a time, as JSON.

`python -m turnwise.envs.adapters.worker FD MODULE:Class`. It ends when its connection does.
"""

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from turnwise.envs.adapters.world import IllegalAction, World, WrongSetting

MEMORY = 4 * 2**30
"""Bytes of address space, at most: what a hostile action makes a package allocate does not take the machine down."""
GRACE_S = 5.0
"""A call that outlives its time by this much ends the process, even when nobody is left to end it."""
MAX_REASON = 500

Worlds = dict[int, World]


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    with suppress(ValueError, OSError):  # not every system has it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    _silence()
    worlds: Worlds = {}
    with suppress(EOFError, OSError):
        while True:
            request = json.loads(connection.recv_bytes())
            signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_S)
            reply = _reply(sys.argv[2], request, worlds)
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send_bytes(reply)


def _silence() -> None:
    """Packages print; nobody reads it, and what is wrong comes back in replies."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _reply(place: str, request: dict[str, Any], worlds: Worlds) -> bytes:
    """The value, or which of three things went wrong."""
    for number in request["forget"]:
        worlds.pop(number, None)
    try:
        return json.dumps({"value": _run(place, request, worlds)}).encode()
    except IllegalAction as error:
        reply = {"illegal": _reason(error)}
    except WrongSetting as error:
        reply = {"wrong": _reason(error)}
    except (Exception, SystemExit) as error:
        reply = {"failed": f"{type(error).__name__}: {_reason(error)}"}
    return json.dumps(reply).encode()


def _run(place: str, request: dict[str, Any], worlds: Worlds) -> Any:
    number, arguments = request["world"], request["arguments"]
    if request["method"] == "open":
        worlds[number] = _world_class(place)(**arguments)
        return worlds[number].about()
    world = worlds[number]
    with world.in_place():
        return getattr(world, request["method"])(**arguments)


def _world_class(place: str) -> type[World]:
    """Imports the package: one that is installed and broken is the user's to mend, and no episode's failure."""
    module, _, name = place.partition(":")
    try:
        found: type[World] = getattr(import_module(module), name)
    except (ImportError, SyntaxError, OSError) as error:
        raise WrongSetting(f"a package does not load, install it again: {type(error).__name__}: {error}") from error
    return found


def _reason(error: BaseException) -> str:
    """One line of bounded length: packages put whole pages into their errors."""
    return " ".join(str(error).split())[:MAX_REASON]


if __name__ == "__main__":
    main()
