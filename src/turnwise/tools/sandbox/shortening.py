"""Long texts, cut in the middle: the beginning says what it is, the end what came of it."""


def shortened(text: str, limit: int) -> str:
    """At most about `limit` characters, the cut included in words."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    cut = len(text) - limit
    return f"{text[:head]}\n... [{cut} characters cut] ...\n{text[-tail:]}"


class MiddleCut:
    """Bytes of unknown number: keeps a head and a tail, and counts the rest."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.keep - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        if data:
            self.tail += data
            if len(self.tail) > 2 * self.keep:
                del self.tail[: -self.keep]

    def text(self, limit: int) -> str:
        """`keep` must be at least four times `limit`: a character has at most four bytes."""
        dropped = self.total - len(self.head) - len(self.tail)
        if not dropped:
            return shortened(bytes(self.head + self.tail).decode("utf-8", "replace"), limit)
        head = self.head.decode("utf-8", "replace")[: limit // 2]
        tail = self.tail.decode("utf-8", "replace")[-(limit - limit // 2) :]
        return f"{head}\n... [{self.total - len(head.encode()) - len(tail.encode())} bytes cut] ...\n{tail}"
