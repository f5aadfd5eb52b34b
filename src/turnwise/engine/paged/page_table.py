"""Page table: which session owns which pages of the cache. Contexts with an equal prefix share pages."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwise.models.memory.plan import PAGE

NO_PAGE = 0
"""Predecessor of a context's first page in the index of pages by content."""


@dataclass(slots=True, eq=False)
class PagedSlot:
    """State of one session: its whole context, and how much of it is cached."""

    index: int
    address: int
    ids: list[int] = field(default_factory=list)
    cached: int = 0
    sampled: int = 0
    pages: list[int] = field(default_factory=list)
    busy: bool = False
    """Whether it has a running request, so that its pages must stay."""
    used: int = 0
    """Number of the pass that last answered it."""
    placed: int = 0
    """Ids whose rotary positions `shift` accounts for; those after them are sampled, so text."""
    shift: int = 0
    """Rotary position of the next token minus its index; not 0 after images in models that place them in a grid."""

    @property
    def pending(self) -> list[int]:
        return self.ids[self.cached :]

    def append(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)

    def restart(self) -> None:
        """Start a new context. The pages are freed with the next request."""
        self.ids = []
        self.cached = self.placed = self.shift = 0


class PageTable:
    """Allocates pages 1 to `count` - 1; page 0 is padding. Full pages of an equal prefix are shared."""

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
        """Free the pages of the slot except the first `keep`."""
        while len(slot.pages) > keep:
            self._free_page(slot.pages.pop())
        slot.cached = min(slot.cached, len(slot.pages) * PAGE)

    def order_free_pages(self) -> None:
        """Allocate from the lowest page again, whatever the order in which pages were freed."""
        self._free.sort(reverse=True)

    def _free_page(self, page: int) -> None:
        self._owners[page] -= 1
        if self._owners[page] == 0:
            if (content := self._content.pop(page, None)) is not None:
                del self._by_content[content]
            self._free.append(page)

    def share_prefix(self, slot: PagedSlot) -> int:
        """Give a session without cached positions the pages of an equal prefix, filled or to be filled in this pass.

        Returns the number of shared positions. The last token is never shared: its logits are needed.
        """
        self.release(slot)
        previous, full = NO_PAGE, (len(slot.ids) - 1) // PAGE
        while len(slot.pages) < full:
            page = self._by_content.get((previous, self._page_ids(slot, len(slot.pages))))
            if page is None:
                break
            self._owners[page] += 1
            slot.pages.append(page)
            previous = page
        slot.cached = len(slot.pages) * PAGE
        return slot.cached

    def share_pages(self, slot: PagedSlot, fork: PagedSlot) -> None:
        """Give a new session, whose ids are the first of another's, its full pages without the last token's."""
        full = min(slot.cached, max(0, len(fork.ids) - 1)) // PAGE
        for page in slot.pages[:full]:
            self._owners[page] += 1
            fork.pages.append(page)
        fork.cached = full * PAGE

    def forget_contents(self) -> None:
        """Share no page with later sessions. Sessions that share one already keep it."""
        self._by_content.clear()
        self._content.clear()

    def reserve(self, slot: PagedSlot, length: int) -> bool:
        """Allocate pages for this many positions. Returns False, and changes nothing, if too few are free."""
        missing = -(-length // PAGE) - len(slot.pages)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            page = self._free.pop()
            self._owners[page] = 1
            slot.pages.append(page)
        return True

    def register(self, slot: PagedSlot, start: int) -> None:
        """Offer the context's full pages from position `start` on to sessions with an equal prefix."""
        for number in range(start // PAGE, (len(slot.ids) - 1) // PAGE):
            previous = slot.pages[number - 1] if number else NO_PAGE
            content = previous, self._page_ids(slot, number)
            page = slot.pages[number]
            if content not in self._by_content and page not in self._content:
                self._by_content[content] = page
                self._content[page] = content

    @staticmethod
    def _page_ids(slot: PagedSlot, number: int) -> tuple[int, ...]:
        return tuple(slot.ids[number * PAGE : (number + 1) * PAGE])
