"""Reward functions written by users: of trajectories (`reward.functions`) or of answers (FILE.py:function in a rubric).

A function may be async. An InfrastructureFailure that it raises drops the episode; any other exception, and a result
that is not a finite number, stops the run and names the file and line.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.concurrency.blocking import EventLoopBlocked, blocking_limit, interruptible
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, Outage, RewardFailure, UserError
from turnwise.core.protocols import Reward, RewardResult
from turnwise.core.trajectory import Trajectory
from turnwise.rewards.rubric import RubricPart, Submission
from turnwise.rewards.settings import RewardFunction
from turnwise.text.suggestions import suggest_and_list
from turnwise.text.truncation import MAX_SHOWN, describe_value
from turnwise.user_code.source_location import error_location, source_location

ANSWER_PARAMETERS = {"answer", "row", "submission", "answered"}
"""Parameter names by which a function of answers is distinguished from one of trajectories."""


def build_reward(chosen: RewardFunction) -> Reward:
    """Return the reward of an entry of `reward.functions`."""
    return trajectory_reward(chosen.function, chosen.reward_name)


def trajectory_reward(function: Callable[[Trajectory], Any], name: str = "") -> Reward:
    """Wrap `function(trajectory)`, which returns a number for the last turn or one number per turn."""
    label = f"the reward {name or getattr(function, '__name__', 'reward')}"
    check_reward_function(function, label)
    if not accepts_arguments(function, 1):
        raise UserError(f"{label} must take one argument: write function(trajectory).")
    if ANSWER_PARAMETERS & set(required_parameters(function)):
        raise UserError(f"{label} takes an answer, but reward.functions get trajectories: set env.params.reward.")
    if takes_batch(function):
        raise UserError(f"{label} takes a batch of completions: write function(trajectory), for one episode.")

    async def reward(trajectory: Trajectory) -> RewardResult:
        result = await call_reward_function(function, trajectory, label=label, fix=lambda error: "fix it")
        return RewardResult(turn_rewards=_turn_rewards(result, len(trajectory.turns), function, label))

    return reward


def answer_reward(function: Callable[..., Any], use: str) -> RubricPart:
    """Wrap `function(answer, row)` or `function(submission)`. `use`: its name in the recipe, FILE.py:function."""
    check_reward_function(function, f'the reward "{use}"')
    whole = _takes_submission(function, use)

    async def part(submission: Submission) -> float:
        arguments = (submission,) if whole else (submission.answer, submission.row)
        label = f'the reward "{use}", on the answer {submission.answer[:MAX_SHOWN]!r},'
        result = await call_reward_function(
            function, *arguments, label=label, fix=lambda error: _suggest_fix(error, submission)
        )
        if not math.isfinite(score := to_float(result)):
            raise not_a_number(result, function, label, "return a finite number")
        return score

    return part


def check_reward_function(function: Callable[..., Any], label: str) -> None:
    """Reject callables that can be called and yet never return a reward."""
    if isinstance(function, type):
        raise UserError(f"{label} is a class: give a function.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UserError(f"{label} is a generator: return a number instead of yielding.")


async def call_reward_function(
    function: Callable[..., Any], *arguments: Any, label: str, fix: Callable[[Exception], str]
) -> Any:
    """Return the function's result. `label` names it in errors; `fix` words the advice for an exception it raised.

    Exceptions stop the run: if the episode were retried, only episodes that the function can read would be trained on.
    """

    async def call() -> Any:
        result = function(*arguments)
        return await result if inspect.isawaitable(result) else result

    try:
        return await interruptible(call(), blocking_limit.get(), label)
    except EventLoopBlocked as error:
        raise RewardFailure(f"{error}: make it faster, or raise rollout.timeout_s") from error
    except (UserError, EnvironmentFailure, InfrastructureFailure):
        raise
    except SystemExit as error:
        raise Outage(
            f"{label} called sys.exit at {error_location(error, function)}: return a number instead."
        ) from error
    except Exception as error:
        what = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))
        raise Outage(f"{label} raised {what} at {error_location(error, function)}: {fix(error)}") from error


def accepts_arguments(function: Callable[..., Any], count: int) -> bool:
    """Return whether the function can be called with `count` positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # not written in Python: it has no signature to check
        return True
    return True


def required_parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
    ]


def takes_batch(function: Callable[..., Any]) -> bool:
    """Return whether this is a reward function of TRL, of all completions of a batch."""
    return "completions" in required_parameters(function)


def to_float(value: Any) -> float:
    """Convert a real number of any library to float; NaN for anything else."""
    try:
        return float(value) if hasattr(value, "__float__") else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan


def not_a_number(value: Any, function: Callable[..., Any], label: str, fix: str) -> Outage:
    """Return the error for a function that returned `value`."""
    hint = " (is a return missing?)" if value is None else ""
    return Outage(f"{label} returned {describe_value(value)}{hint} ({source_location(function)}): {fix}")


def _turn_rewards(result: Any, turns: int, function: Callable[..., Any], label: str) -> tuple[float, ...]:
    plain = result.tolist() if hasattr(result, "tolist") else result  # numpy and torch, of any shape
    if not isinstance(plain, Sequence) or isinstance(plain, str):
        plain = ([0.0] * turns + [plain])[1:] if turns else []  # an episode without turns has none to reward
    if len(plain) != turns:
        raise not_a_number(result, function, label, f"return one number, or one for each of {turns} turns")
    numbers = tuple(map(to_float, plain))
    if not all(map(math.isfinite, numbers)):
        raise not_a_number(result, function, label, "return finite numbers")
    return numbers


def _suggest_fix(error: Exception, submission: Submission) -> str:
    if isinstance(error, KeyError) and error.args and (name := str(error.args[0])) not in submission.row:
        columns = suggest_and_list(name, map(str, submission.row))
        return f"if that is a column, the task row has none of this name:{columns}"
    return "return 0 for answers that it cannot read"


def _takes_submission(function: Callable[..., Any], use: str) -> bool:
    """Return whether the function takes a `Submission`, rather than the answer and its row."""
    names, fix = required_parameters(function), "write function(answer, row) or function(submission)"
    if takes_batch(function):
        raise UserError(
            f'The reward "{use}" takes a batch of completions: write function(answer, row), for one answer.'
        )
    if not accepts_arguments(function, 2) and not accepts_arguments(function, 1):
        raise UserError(f'The reward "{use}" must take one or two arguments: {fix}')
    if names == ["row", "answer"]:
        raise UserError(f'The reward "{use}" takes the row first, but the answer comes first: {fix}')
    if accepts_arguments(function, 2):
        return False
    if names in (["answer"], ["row"]):
        raise UserError(f'The reward "{use}" takes {names[0]} alone, but would be given the whole submission: {fix}')
    if names == ["trajectory"]:
        raise UserError(f'The reward "{use}" takes a trajectory: name it in reward.functions, or {fix}')
    return True
