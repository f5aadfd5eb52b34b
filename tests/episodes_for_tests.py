"""Scripted agents with tiny's tokens, and hand-made trajectories."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count

from hypothesis import strategies as st

from turnwise.core.messages import assistant
from turnwise.core.protocols import Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Group, Span, Status, Stop, TokenName, Trajectory, Turn
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.seeds import seed_for
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import FullContext
from turnwise.rollout.episode import Limits


@cache
def renderer() -> Renderer:
    return Renderer(tiny_tokenizer())


@cache
def end_id() -> int:
    return int(tiny_tokenizer().eos_token_id)


def context() -> FullContext:
    return FullContext(renderer())


def spoken(text: str) -> list[int]:
    """Return the text byte by byte and the end of the turn, unlike any tokenizer, so that re-encoding is noticed."""
    return [*text.encode(), end_id()]


def says(*answers: str) -> ScriptedEngine:
    """Return a script of answers by turn; the last one is repeated."""
    return ScriptedEngine(lambda key, turn, ids: spoken(answers[min(turn, len(answers) - 1)]), [end_id()])


def limits(
    *, max_new_tokens: int = 64, max_tokens: int = 4096, timeout_s: float = 60.0, stop: tuple[str, ...] = ()
) -> Limits:
    sampling = Sampling(max_tokens=max_new_tokens, stop=stop)
    return Limits(sampling=sampling, max_tokens=max_tokens, timeout_s=timeout_s)


def task_of(env: str, index: int = 0, **params: object) -> Task:
    return Task(env=env, seed=seed_for("train", index), params=params)


def key_of(task: Task, member: int = 0, attempt: int = 0) -> EpisodeKey:
    return EpisodeKey(run_seed=0, round=0, task=task, member=member, attempt=attempt)


def turn_of(
    context_ids: Sequence[int],
    action_ids: Sequence[int],
    *,
    extends: bool = True,
    reward: float = 0.0,
    logprobs: Sequence[float] | None = None,
    temperature: float = 1.0,
    info: Mapping[str, object] | None = None,
    spans: Sequence[Span] = (),
) -> Turn:
    return Turn(
        context_ids=tuple(context_ids),
        extends=extends,
        action_ids=tuple(action_ids),
        action_logprobs=tuple(-1.0 for _ in action_ids) if logprobs is None else tuple(logprobs),
        temperature=temperature,
        spans=tuple(spans),
        message=assistant(""),
        stop=Stop.EOS,
        reward=reward,
        info=info or {},
    )


def trajectory_of(
    turns: Sequence[Turn], *, task: Task | None = None, member: int = 0, status: Status = Status.FAILED
) -> Trajectory:
    return Trajectory(
        task=task or task_of("test"),
        member=member,
        attempt=0,
        turns=tuple(turns),
        status=status,
        turn_rewards=tuple(turn.reward for turn in turns),
    )


def group_of(turn_lists: Sequence[Sequence[Turn]], index: int = 0) -> Group:
    task = task_of("test", index)
    members = [trajectory_of(turns, task=task, member=number) for number, turns in enumerate(turn_lists)]
    return Group(task=task, trajectories=tuple(members))


PROMPTS = ([7] * 11, [8] * 9, [9, 10], [11])
"""Prompts; only some are long enough to be shared."""


def turn_from(number: int, *, first: bool, ids: Iterator[int]) -> Turn:
    """Return the turn encoded by a number: drawing one number per turn keeps hypothesis fast."""

    def choose(options: int) -> int:
        nonlocal number
        number, choice = divmod(number, options)
        return choice

    fresh = bool(choose(2)) or first
    own = [next(ids) for _ in range(choose(5))]
    prompt = PROMPTS[choose(len(PROMPTS))]
    action = [next(ids) for _ in range(1 + choose(5))]
    return turn_of(
        [*prompt, *own] if fresh else own,
        action,
        extends=not fresh,
        reward=choose(9) / 4 - 1,
        logprobs=[-token / 8 for token in action],
        temperature=(0.5, 1.0, 1.5)[choose(3)],
    )


@st.composite
def trajectories(draw: st.DrawFn) -> list[Trajectory]:
    """Generate one to five trajectories of one to four turns; some turns start a new context, prompts are often shared.

    Every id but those of the prompts occurs once.
    """
    ids = count(100)
    shapes = draw(st.lists(st.lists(st.integers(0, 2**16), min_size=1, max_size=4), min_size=1, max_size=5))
    return [
        trajectory_of([turn_from(number, first=index == 0, ids=ids) for index, number in enumerate(shape)])
        for shape in shapes
    ]


def name_token(token_id: int) -> TokenName:
    return TokenName(id=token_id, text=f"<{token_id}>", special=token_id == 7)
