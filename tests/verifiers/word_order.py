"""A taskset of verifiers' second generation: rewards on a trace."""

import verifiers.v1 as vf

WORDS = ("apple banana", "cherry date", "fig grape", "kiwi lemon", "mango nut", "olive pear")
FAULTS = ("nan", "raise", "none")


class OrderData(vf.TaskData):
    answer: str
    fault: str = ""


class OrderTask(vf.Task[OrderData]):
    @vf.reward(weight=1.0)
    async def is_reversed(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.5)
    async def is_short(self, trace: vf.Trace) -> float:
        if self.data.fault == "raise":
            raise ValueError("no judge")
        return float(self.data.fault or len(trace.last_reply) < 40)


class OrderConfig(vf.TasksetConfig):
    faulty: bool = False


class OrderTaskset(vf.Taskset[OrderTask, OrderConfig]):
    def load(self) -> list[OrderTask]:
        faults = FAULTS if self.config.faulty else ("",) * 5
        return [self._task(f"{words} {number}", fault) for number, fault in enumerate(faults) for words in WORDS]

    def _task(self, words: str, fault: str) -> OrderTask:
        answer = " ".join(words.split()[::-1])
        data = OrderData(prompt=f"Swap the words: {words}", answer=answer, fault=fault)
        return OrderTask(data, self.config.task)


__all__ = ["OrderTaskset"]
