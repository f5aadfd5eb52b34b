"""Which session owns which pages; pages that begin alike are owned together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwise.engine.paged.state import PAGE

NO_PAGE = 0
"""The page before the first one, in the index of pages by content."""


@dataclass(slots=True, eq=False)
class PagedSlot:
    """One session's place: its whole context, and how much of it the cache holds."""

    index: int
    address: int
    ids: list[int] = field(default_factory=list)
    cached: int = 0
    sampled: int = 0
    pages: list[int] = field(default_factory=list)
    busy: bool = False
    """It is being answered: its pages stay."""
    used: int = 0
    """When it was last answered, in passes."""

    @property
    def pending(self) -> list[int]:
        return self.ids[self.cached :]

    def append(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)

    def restart(self) -> None:
        """Its pages go back when it is answered next."""
        self.ids = []
        self.cached = 0


class PageTable:
    """Pages 1 to `count` - 1. A full page of a context that others begin with too is read by all of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, 0, -1))
        self._owners = [0] * count
        self._by_content: dict[tuple[int, tuple[int, ...]], int] = {}
        self._content: dict[int, tuple[int, tuple[int, ...]]] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def release(self, slot: PagedSlot, keep: int = 0) -> None:
        """Gives back what the slot owns, but its first `keep` pages."""
        while len(slot.pages) > keep:
            self._give_back(slot.pages.pop())
        slot.cached = min(slot.cached, len(slot.pages) * PAGE)

    def order_free_pages(self) -> None:
        """Hand out pages from the first one on again, whatever order they came back in."""
        self._free.sort(reverse=True)

    def _give_back(self, page: int) -> None:
        self._owners[page] -= 1
        if self._owners[page] == 0:
            if (content := self._content.pop(page, None)) is not None:
                del self._by_content[content]
            self._free.append(page)

    def share(self, slot: PagedSlot) -> int:
        """Lets a session that has nothing cached begin with pages that others have filled, or are to fill in this pass.

        Returns how many positions that are. The last token is never among them: its logits are wanted.
        """
        self.release(slot)
        before, full = NO_PAGE, (len(slot.ids) - 1) // PAGE
        while len(slot.pages) < full:
            page = self._by_content.get((before, self._part(slot, len(slot.pages))))
            if page is None:
                break
            self._owners[page] += 1
            slot.pages.append(page)
            before = page
        slot.cached = len(slot.pages) * PAGE
        return slot.cached

    def reserve(self, slot: PagedSlot, length: int) -> bool:
        """Pages for so many positions; False, and nothing changed, where too few are free."""
        wanted = -(-length // PAGE) - len(slot.pages)
        if wanted > len(self._free):
            return False
        for _ in range(wanted):
            page = self._free.pop()
            self._owners[page] = 1
            slot.pages.append(page)
        return True

    def tell(self, slot: PagedSlot, start: int) -> None:
        """Makes the full pages of the context from position `start` on known to those who begin alike."""
        for number in range(start // PAGE, (len(slot.ids) - 1) // PAGE):
            before = slot.pages[number - 1] if number else NO_PAGE
            content = before, self._part(slot, number)
            page = slot.pages[number]
            if content not in self._by_content and page not in self._content:
                self._by_content[content] = page
                self._content[page] = content

    @staticmethod
    def _part(slot: PagedSlot, number: int) -> tuple[int, ...]:
        return tuple(slot.ids[number * PAGE : (number + 1) * PAGE])
