"""Functions of the user's that give rewards: what they may be, and what is said where they break."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.core.blocking import EventLoopBlocked, blocking_limit, interruptible
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, Outage, RewardFailure, UserError
from turnwise.core.protocols import Reward, RewardResult
from turnwise.core.source_location import error_location, source_location
from turnwise.core.trajectory import Trajectory

MAX_SHOWN = 60


def accepts_arguments(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with that many arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # of another language than Python: nothing is known of it
        return True
    return True


def required_parameters(function: Callable[..., Any]) -> list[str]:
    """The names of those that it cannot be called without."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in found if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]


def check_reward_function(function: Callable[..., Any], told: str) -> None:
    """Refuses what is called without a mistake and yet gives no reward."""
    if isinstance(function, type):
        raise UserError(f"{told} is a class: give a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UserError(f"{told} yields, so that calling it gives no number: let it return one")


async def call_reward_function(
    function: Callable[..., Any], *arguments: Any, told: str, mend: Callable[[Exception], str]
) -> Any:
    """What it gives; `told`: how an error names it, `mend`: what to do about one that it raises.

    Run again, only episodes that it can read would be trained on: its bugs stop the run.
    """

    async def called() -> Any:
        given = function(*arguments)
        return await given if inspect.isawaitable(given) else given

    try:
        return await interruptible(called(), blocking_limit.get(), told)
    except EventLoopBlocked as error:
        raise RewardFailure(f"{error}: let it return sooner, or raise rollout.timeout_s") from error
    except (UserError, EnvironmentFailure, InfrastructureFailure):
        raise
    except SystemExit as error:
        raise Outage(
            f"{told} ended the program at {error_location(error, function)}: let it return a number"
        ) from error
    except Exception as error:
        what = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))
        raise Outage(f"{told} raised {what} at {error_location(error, function)}: {mend(error)}") from error


def to_float(value: Any) -> float:
    """Whatever is a real number, of any library; NaN for what is none."""
    try:
        return float(value) if hasattr(value, "__float__") else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan


def not_a_number(given: Any, function: Callable[..., Any], told: str, mend: str) -> Outage:
    """What is said of one that gave this."""
    why = ", as where a path of it returns nothing" if given is None else ""
    return Outage(f"{told} gave {describe_value(given)} ({source_location(function)}){why}: {mend}")


def describe_value(given: Any) -> str:
    """Return what a user's function gave, short enough for an error."""
    try:
        text = repr(given)
    except Exception:  # whatever its __repr__ does; an int of 5000 digits has none
        return f"a value of type {type(given).__name__}"
    text = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    return f"the text {text}" if isinstance(given, str) else text


ANSWER_PARAMETERS = {"answer", "row", "answered"}
"""What functions of another kind call their arguments."""


def trajectory_reward(function: Callable[[Trajectory], Any]) -> Reward:
    """`function(trajectory)` gives a number, for the last turn, or one number a turn; it may be async.

    An InfrastructureFailure of its own leaves the episode out; whatever else it raises is its author's to mend.
    """
    told = f"the reward {getattr(function, '__name__', 'reward')}"
    check_reward_function(function, told)
    if not accepts_arguments(function, 1):
        raise UserError(f"{told} takes other arguments: write function(trajectory)")
    if ANSWER_PARAMETERS & set(required_parameters(function)):
        raise UserError(
            f"{told} is one of answers, and reward.functions get trajectories: name it in env.params.reward"
        )

    async def reward(trajectory: Trajectory) -> RewardResult:
        given = await call_reward_function(function, trajectory, told=told, mend=lambda error: "mend it")
        return RewardResult(turn_rewards=_by_turn(given, len(trajectory.turns), function, told))

    return reward


def _by_turn(given: Any, turns: int, function: Callable[..., Any], told: str) -> tuple[float, ...]:
    plain = given.tolist() if hasattr(given, "tolist") else given  # numpy's and torch's, of any shape
    if not isinstance(plain, Sequence) or isinstance(plain, str):
        plain = ([0.0] * turns + [plain])[1:] if turns else []  # an episode that had no turn has none to reward
    if len(plain) != turns:
        mend = f"give one number, or one for each of {turns} turns"
        raise not_a_number(given, function, told, mend)
    numbers = tuple(map(to_float, plain))
    if not all(map(math.isfinite, numbers)):
        raise not_a_number(given, function, told, "give finite numbers")
    return numbers
