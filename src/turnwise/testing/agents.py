"""Agents that play environments for `soundness.py`: a solver, a random one, and some that know nothing of answers."""

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from turnwise.concurrency.blocking import interruptible
from turnwise.core.messages import assistant
from turnwise.core.protocols import Observation, StepResult
from turnwise.envs.answers import format_answer, read_answer
from turnwise.envs.spec import EnvRunner
from turnwise.envs.text_env import TextEnv
from turnwise.envs.tool_env import ToolEnv
from turnwise.text.truncation import shorten

Result = TypeVar("Result")
Policy = Callable[[EnvRunner, random.Random, str], str | None]
"""(episode, random stream, last message) -> reply; None gives up."""
Sayings = Callable[[str, Sequence[str]], Iterator[str]]
"""(question, legal actions) -> everything that an agent says in a task."""

MAX_TURNS = 1000
"""Turns of an episode, for environments that do not limit them."""
MAX_SAYINGS = 8
"""Replies that an agent which knows nothing gives per task."""
NUM_OPTIONS = 40
LONG = 20_000
"""Characters of the longest saying."""
SHOWN = 60
"""Characters of a reply that errors quote."""
FORMULA = re.compile(r"[-+*/^()\d\s.]*\d[-+*/^()\d\s.]*")


class StepTooSlow(Exception):
    """A call of the environment took longer than its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The agent's messages and the environment's answers."""

    start: Observation
    replies: tuple[str, ...]
    results: tuple[StepResult, ...]
    seconds: tuple[float, ...]
    """Seconds of each step."""

    @property
    def total(self) -> float:
        return sum(result.reward for result in self.results)

    @property
    def success(self) -> bool:
        return any(result.success for result in self.results)

    @property
    def question(self) -> str:
        """Text of the user messages at the start."""
        return "\n".join(message.content for message in self.start.messages if message.role == "user")


async def play(runner: EnvRunner, policy: Policy, rng: random.Random, *, step_s: float) -> Episode:
    """Play one episode. `step_s`: longest time of a call of the environment."""
    try:
        start = await call(runner.start(), "start", step_s)
        replies, results, seconds = list[str](), list[StepResult](), list[float]()
        text = start.messages[-1].content
        while len(replies) < MAX_TURNS and not (results and results[-1].over):
            reply = policy(runner, rng, text)
            if reply is None:
                break
            began = time.perf_counter()
            results.append(await call(runner.step(assistant(reply)), f"step({quote(reply)})", step_s))
            seconds.append(time.perf_counter() - began)
            replies.append(reply)
            text = results[-1].messages[-1].content if results[-1].messages else ""
    finally:
        await runner.close()
    return Episode(start=start, replies=tuple(replies), results=tuple(results), seconds=tuple(seconds))


async def call(awaitable: Awaitable[Result], name: str, limit_s: float) -> Result:
    """Await a call of the environment; raise StepTooSlow if it takes longer, also if it blocks the event loop."""
    try:
        async with asyncio.timeout(limit_s):
            return await interruptible(awaitable, limit_s, name)
    except TimeoutError as error:
        raise StepTooSlow(f"{name} took longer than {limit_s:g} s") from error


def quote(reply: str) -> str:
    return repr(shorten(reply, SHOWN)) + (f", {len(reply):,} characters" if len(reply) > SHOWN else "")


def solver(runner: EnvRunner, rng: random.Random, text: str) -> str | None:
    """Play the solver's next actions."""
    env = runner.env
    actions = env.solve() if isinstance(env, TextEnv) else None
    return env.reply(actions[: env.max_actions_per_turn]) if isinstance(env, TextEnv) and actions else None


def random_agent(runner: EnvRunner, rng: random.Random, text: str) -> str:
    """Play legal actions if the environment suggests some, else words of the observation and numbers."""
    suggest = getattr(runner.env, "random_answer", None)
    suggested = suggest(rng) if suggest is not None else None
    return suggested or format_answer([rng.choice([*text.split()[:50], *map(str, range(101))])])


def repeating(first: str) -> Policy:
    """Give the same reply in every turn."""
    return lambda runner, rng, text: first


def saying(replies: Sequence[str]) -> Policy:
    """Give these replies, then give up."""
    remaining = iter(replies)
    return lambda runner, rng, text: next(remaining, None)


def echo(question: str, options: Sequence[str]) -> Iterator[str]:
    """The question, its lines, and its formulas."""
    yield from dict.fromkeys([question, *question.splitlines(), *map(str.strip, FORMULA.findall(question))])


def silent(question: str, options: Sequence[str]) -> Iterator[str]:
    yield from ("", " ", "\n", ".", "None")


def all_options(question: str, options: Sequence[str]) -> Iterator[str]:
    for separator in (" ", ", ", " or ", "\n", "; "):
        yield separator.join(options)
    yield "</answer><answer>".join([*options, "none of them"])  # the last one counts


def longest(question: str, options: Sequence[str]) -> Iterator[str]:
    text = f"{question}\n{', '.join(options)}\n"
    yield (text * (LONG // len(text) + 1))[:LONG]


IGNORANT: dict[str, Sayings] = {
    "echo": echo,
    "silent": silent,
    "all options": all_options,
    "longest": longest,
}
"""Agents that know nothing of the answer."""


def options_of(runner: EnvRunner) -> list[str]:
    """Return different legal answers of a started episode; numbers if it suggests fewer than two."""
    rng, options = random.Random(0), dict[str, None]()
    suggest = getattr(runner.env, "random_answer", None)
    for _ in range(10 * NUM_OPTIONS):
        reply = (suggest(rng) if suggest is not None else None) or ""
        calls = [] if isinstance(runner.env, ToolEnv) else [reply]  # a call of a tool is not an answer
        options.update(dict.fromkeys(read_answer(reply, several=True).actions or calls))
    listed = [*getattr(runner.env, "action_names", ())] or [option for option in options if option]
    return listed[:NUM_OPTIONS] if len(listed) > 1 else [str(number) for number in range(100)]


async def ignorant_episodes(
    make: Callable[[], EnvRunner], agent: str, *, step_s: float
) -> list[tuple[str, StepResult]]:
    """Say all that the agent says in a task, in as many episodes of it as that takes; return replies and results."""
    said: list[tuple[str, StepResult]] = []
    first = make()
    try:
        start = await call(first.start(), "start", step_s)
        question = "\n".join(message.content for message in start.messages if message.role == "user")
        replies = _replies(agent, question, options_of(first), getattr(first.env, "action_names", ()))
    finally:
        await first.close()
    while len(said) < len(replies):
        episode = await play(make(), saying(replies[len(said) :]), random.Random(0), step_s=step_s)
        if not episode.results:
            break
        said.extend(zip(episode.replies, episode.results, strict=True))
    return said


def _replies(agent: str, question: str, options: Sequence[str], legal: Sequence[str]) -> list[str]:
    """Return what an agent says as whole replies, which some environments read, and in answer tags."""
    texts = list(IGNORANT[agent](question, options))[:MAX_SAYINGS]
    texts = [text for text in texts if text not in legal]  # a move of a game is fair
    return [*(text for text in texts if "<answer>" not in text), *(format_answer([text]) for text in texts)]
