"""The last turns only, as they were: their observations and the very ids that were sampled."""

from collections.abc import Sequence
from dataclasses import replace

from turnwise.core.messages import Message
from turnwise.core.trajectory import Turn
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import FullHistory, Pending, prefaced, rules


class Window(FullHistory):
    """A full history of `turns` turns besides the pending one, whole turns dropped from the front.

    It grows by `slack` turns before it slides back to `turns`. A slide costs the engine a prefill and the learner a
    segment of the whole window, so a slack of n makes n + 1 turns share one: with 0 every turn pays for all of it.
    """

    def __init__(self, renderer: Renderer, *, turns: int, slack: int, keep_opening: bool) -> None:
        super().__init__(renderer)
        self._turns, self._slack, self._keep_opening = turns, slack, keep_opening

    async def next(self, pending: Pending, turns: Sequence[Turn], messages: Sequence[Message]) -> Pending:
        grown = self._grown(pending, turns[-1], messages)
        if len(turns) - pending.oldest <= self._turns + self._slack:
            return grown
        return self._slid(grown, turns, oldest=len(turns) - self._turns)

    def _slid(self, grown: Pending, turns: Sequence[Turn], oldest: int) -> Pending:
        """The rules and the oldest observation that stays open the context; stored ids are all that follows.

        That observation is rendered from its message, since what was stored before it closes an action that is gone.
        """
        first, *rest = grown.later[oldest - 1 :]
        opening = (*rules(grown.opening, self._keep_opening), *prefaced("", first.messages))
        tail = [
            token
            for turn, shown in zip(turns[oldest:], rest, strict=True)
            for part in (turn.action_ids, shown.ids)
            for token in part
        ]
        return self._restarted(replace(grown, oldest=oldest), opening, tail)
