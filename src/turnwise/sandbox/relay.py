"""Start a program and connect it to a Unix socket: `relay.py PORT SOCKET PROGRAM [ARGUMENT ...]`, inside a session.

The program's connections to 127.0.0.1:PORT, in a network that reaches nothing else, end at the socket. The exit status
is that of the program. Its source is sent to the session, which has no turnwise.
"""

import asyncio
import sys
from contextlib import suppress

CHUNK = 1 << 16


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of the input, and end the output."""
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.close()


async def run(port: int, path: str, command: list[str]) -> int:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    async with await asyncio.start_server(connect, "127.0.0.1", port):
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
        return await process.wait()


if __name__ == "__main__":
    status = asyncio.run(run(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    sys.exit(status if status >= 0 else 128 - status)
