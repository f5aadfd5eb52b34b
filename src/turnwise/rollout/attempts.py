"""What broke is tried again: how often, and with which luck."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure

Played = TypeVar("Played")


async def tried(
    attempts: int, play: Callable[[int], Awaitable[Played]], broke: Callable[[Exception], None] = lambda failure: None
) -> Played | Exception:
    """`play(luck)`, or the last failure where every attempt broke.

    What broke for reasons of infrastructure is played again with the same luck, so that the agent says and meets the
    same: with other luck, what makes use of tools that fail would be seen more rarely than it is done. An environment
    that broke meets other luck, which may spare it.
    """
    last: Exception = RuntimeError("no attempt was made")
    luck = 0
    for _ in range(attempts):
        try:
            return await play(luck)
        except InfrastructureFailure as failure:
            last = failure
        except EnvironmentFailure as failure:
            last, luck = failure, luck + 1
        broke(last)
    return last
