"""What a server said besides the protocol: the last of it explains why it ended."""

import re

KEPT = 4096
SHOWN = 200
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
CHATTER = re.compile(r"^\s+at |^Node\.js v|^npm error (\d+\s*$|.*(complete log|Note that you can|tarball, folder))")
"""What node and npm say behind the line that tells what is wrong."""


class Said:
    """The end of a server's error output; the rest is let go."""

    def __init__(self) -> None:
        self._bytes = b""

    def add(self, data: bytes) -> None:
        self._bytes = (self._bytes + data)[-KEPT:]

    @property
    def last_line(self) -> str:
        """The last that tells of an error, where one does."""
        lines = CONTROL.sub("", self._bytes.decode("utf-8", "replace")).split("\n")
        telling = [line.strip() for line in lines if line.strip() and not CHATTER.search(line)]
        errors = [line for line in telling if "error" in line.lower()]
        return (errors or telling or [""])[-1][:SHOWN]
