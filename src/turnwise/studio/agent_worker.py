"""The process of a loaded checkpoint: reads requests from stdin and writes one answer to each, as lines of JSON.

    python -m turnwise.studio.agent_worker

The first request names the checkpoint (`AgentRequest`), the others are `AgentCommand`s. An answer is what the page
shows, or {"error"}. The environment is code of the user: it runs here, where it can neither stop nor block the studio,
and what it prints goes to stderr. The process ends with its stdin, and so with the studio.
"""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from threading import Thread, Timer
from typing import Any

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.record.jsonl import replace_nonfinite
from turnwise.studio.agent_requests import AgentCommand, AgentRequest
from turnwise.studio.loaded_agent import LoadedAgent, load_agent
from turnwise.text.truncation import one_line

CLOSE_S = 10.0
"""Seconds in which environments may close after the studio has ended."""


class Channel:
    """The pipe to the studio, kept from code that reads stdin or prints."""

    def __init__(self) -> None:
        self._requests, self._answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)

    def read(self) -> Iterator[bytes]:
        yield from self._requests

    def write(self, answer: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(replace_nonfinite(answer), allow_nan=False).encode() + b"\n")
        self._answers.flush()


def main() -> None:
    channel = Channel()
    requests = channel.read()
    try:
        agent = load_agent(AgentRequest.model_validate_json(next(requests)))
        channel.write(agent.describe())
    except StopIteration:
        return
    except (UserError, EnvironmentFailure, InfrastructureFailure) as error:
        channel.write({"error": one_line(str(error))})
        return
    asyncio.run(_answer_all(agent, channel, requests))


async def _answer_all(agent: LoadedAgent, channel: Channel, requests: Iterator[bytes]) -> None:
    queue, loop = asyncio.Queue[bytes | None](), asyncio.get_running_loop()

    def read() -> None:
        for line in requests:
            loop.call_soon_threadsafe(queue.put_nowait, line)
        timer = Timer(CLOSE_S, os._exit, (0,))  # an environment may hang
        timer.daemon = True
        timer.start()
        loop.call_soon_threadsafe(queue.put_nowait, None)

    Thread(target=read, daemon=True).start()
    while (line := await queue.get()) is not None:
        try:
            channel.write(await agent.run(AgentCommand.model_validate_json(line)))
        except UserError as error:
            channel.write({"error": one_line(str(error)), **agent.describe()})
    await agent.close()


if __name__ == "__main__":
    main()
