"""A judge as a part of a rubric: what one answer is worth, by what the rubric asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

from pydantic import model_validator

from turnwise.rewards.judge.benches import bench_for
from turnwise.rewards.judge.prompts import absolute
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.rewards.judge.transcript import AGENT, of_messages
from turnwise.rewards.judge.verdicts import read_score
from turnwise.rewards.parts.texts import looked_at, references
from turnwise.rewards.rubric import Answered

_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent_judges() -> Iterator[None]:
    """For play whose reward nobody reads, as the warm-up's: a judge would be paid for noise."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


class Judge(JudgeSettings):
    """A model's score for the answer, 0 to 1."""

    @model_validator(mode="after")
    def _alone(self) -> Self:
        if self.mode != "absolute":
            raise ValueError(f'mode = "{self.mode}" compares members of a group: put it into [reward] judges')
        return self

    async def __call__(self, answered: Answered) -> float:
        if _silent.get():
            return 0.0
        answer = ((AGENT, looked_at(answered, "answer")),)
        shown = of_messages(answered.messages) if self.shows == "episode" and answered.messages else answer
        reference = "\nor: ".join(references(answered.row, self.against)) if self.against else ""
        messages = absolute(shown, answered.question, reference, self)
        return await bench_for(self).ask(messages, lambda text: read_score(text, self.scale))
