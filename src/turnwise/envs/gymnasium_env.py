"""An environment of turnwise with the interface of Gymnasium. See `to_gymnasium`."""

import asyncio
import os
import string
import threading
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar, TypeVar

import gymnasium
from gymnasium import spaces
from gymnasium.vector.utils import create_shared_memory

from turnwise.core.errors import FOREIGN_ERRORS
from turnwise.core.messages import Message, assistant
from turnwise.core.task import Split, Task
from turnwise.envs.answers import format_answer
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for
from turnwise.envs.spec import EnvRunner, EnvSpec

MAX_CHARS = 1_000_000
"""Longest text of the spaces."""
Found = TypeVar("Found")


class TextSpace(spaces.Text):
    """Any text. Samples are of printable ASCII."""

    def __init__(self) -> None:
        super().__init__(MAX_CHARS, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= MAX_CHARS

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        length = int(self.np_random.integers(1, 20))
        return "".join(self.np_random.choice(list(string.ascii_letters + " "), length))


@create_shared_memory.register(TextSpace)
def _refuse_shared_memory(space: TextSpace, n: int = 1, ctx: Any = None) -> Any:
    """Refuse: AsyncVectorEnv reads texts from it once, when it is made, and would return empty ones for ever."""
    raise gymnasium.error.CustomSpaceError("Texts cannot be in shared memory.")


class GymnasiumEnv(gymnasium.Env[str, Any]):
    """Episodes of an environment: texts as observations, texts or numbers of named actions as actions.

    `reset(seed=n)` starts task n of the split, as training in turnwise has it; without a seed the task is random.
    `options={"index": n}` chooses the task without seeding.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}

    def __init__(
        self,
        spec: EnvSpec,
        params: Mapping[str, Any],
        *,
        split: Split = "train",
        replies: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self._spec, self._params, self._split = spec, spec.check_params(params), split
        names = () if spec.text_env is None or replies else spec.text_env.action_names
        self._replies, self.action_names = replies, names
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(len(names)) if names else TextSpace()
        self.observation_space = TextSpace()
        self._size = spec.split_sizes(self._params).get(split, SEEDS_PER_SPLIT)
        self._runner: EnvRunner | None = None
        self._shown = ""
        self._end: tuple[bool, bool] | None = None
        """terminated and truncated of an episode that is over."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        index = (options or {}).get("index", seed)
        number = int(self.np_random.integers(self._size)) if index is None else int(index) % self._size
        task = Task(env=self._spec.name, seed=seed_for(self._split, number), split=self._split, params=self._params)
        member = int(self.np_random.integers(2**31))
        opening, self._end = _wait(self._start(task, member)), None
        return self._show(opening.messages), {"messages": _chat(opening.messages), "index": number}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._runner is None:
            raise gymnasium.error.ResetNeeded("Call reset before step.")
        if self._end is not None:
            gymnasium.logger.warn("The episode is over: call reset before step.")
            return self._shown, 0.0, *self._end, {"messages": [], "success": False, "invalid": True}
        text = self.action_names[int(action)] if self.action_names else str(action)
        reply = text if self._replies else format_answer([text])
        result = _wait(self._runner.step(assistant(reply)))
        info = {"messages": _chat(result.messages), "success": result.success, "invalid": result.invalid}
        self._end = (result.terminated, result.truncated) if result.over else None
        return self._show(result.messages), float(result.reward), result.terminated, result.truncated, info

    def render(self) -> Any:
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            with suppress(*FOREIGN_ERRORS):
                _wait(runner.close())

    async def _start(self, task: Task, member: int) -> Any:
        if self._runner is not None:
            await self._runner.close()
        self._runner = self._spec.make(task, member)
        return await self._runner.start()

    def _show(self, messages: tuple[Message, ...]) -> str:
        """Return the text of the messages; rules, in system messages, are in the info."""
        self._shown = "\n".join(message.content for message in messages if message.role != "system")[:MAX_CHARS]
        return self._shown


def _chat(messages: tuple[Message, ...]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


@cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:
    """Return the event loop of this process for environments, in a thread, so that a notebook's own does not matter."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="gymnasium environments", daemon=True).start()
    return loop


def _wait(work: Awaitable[Found]) -> Found:
    async def run() -> Found:
        return await work

    return asyncio.run_coroutine_threadsafe(run(), _loop_of(os.getpid())).result()
