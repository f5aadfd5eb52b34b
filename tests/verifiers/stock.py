"""A taskset of verifiers' second generation with tools: a Toolset that all tasks share, or one for each episode."""

from typing import Any

import verifiers.v1 as vf

STOCK = {"apples": 3, "pears": 7, "plums": 12, "figs": 5, "nuts": 40}
COPIES = 6
"""Questions about each article."""


class StockToolset(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def count(self, article: str) -> str:
        """Count an article in the store."""
        return str(STOCK[article])


class StockData(vf.TaskData):
    answer: str


class StockTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig | None = None


class StockTask(vf.Task[StockData, vf.State, StockTaskConfig]):
    @classmethod
    def toolsets(cls, config: StockTaskConfig) -> list[Any]:
        return [] if config.tools is None else [StockToolset(config.tools)]

    @vf.reward(weight=1.0)
    async def is_right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)


class StockConfig(vf.TasksetConfig):
    task: StockTaskConfig = StockTaskConfig()
    shared: bool = True


class StockTaskset(vf.Taskset[StockTask, StockConfig]):
    def load(self) -> list[StockTask]:
        return [
            StockTask(StockData(prompt=f"Order {number}: how many {name}?", answer=str(count)), self.config.task)
            for number in range(COPIES)
            for name, count in STOCK.items()
        ]

    @classmethod
    def toolsets(cls, config: StockConfig) -> list[Any]:
        return [StockToolset(vf.ToolsetConfig())] if config.shared else []


__all__ = ["StockTaskset"]

if __name__ == "__main__":
    StockToolset.run()
