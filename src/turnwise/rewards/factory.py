"""From what a recipe says of rewards to a rubric.

reward = "myreward.py:score"                                       # score(answer, row) -> a number
reward = [ { use = "exact_match" }, { use = "judge", model = "...", rubric = "cites its source", weight = 0.3 } ]
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.config.keys import read_options
from turnwise.core.errors import UserError
from turnwise.core.protocols import GroupReward
from turnwise.core.suggestions import suggest, suggest_and_list
from turnwise.rewards.functions import (
    accepts_arguments,
    call_reward_function,
    check_reward_function,
    not_a_number,
    required_parameters,
    to_float,
)
from turnwise.rewards.judge.client import JudgeClient
from turnwise.rewards.judge.judges import AnswerJudge, GroupJudge
from turnwise.rewards.judge.prompts import Decode
from turnwise.rewards.judge.registry import bench_for
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.rewards.math_answers import SymbolicMath
from turnwise.rewards.rubric import Rubric, RubricPart, Submission
from turnwise.rewards.scoring import ENV, FORMAT
from turnwise.rewards.sql_results import SqlResult
from turnwise.rewards.text_answers import F1, ExactMatch, LengthPenalty, RegexMatch, RepetitionPenalty
from turnwise.rewards.unit_tests import UnitTests

REWARD_TYPES: dict[str, type[Any]] = {
    "exact_match": ExactMatch,
    "f1": F1,
    "math": SymbolicMath,
    "unit_tests": UnitTests,
    "sql": SqlResult,
    "regex": RegexMatch,
    "length": LengthPenalty,
    "repetition": RepetitionPenalty,
    "judge": AnswerJudge,
}
REWARD_TABLE_KEYS = ("use", "name", "weight")
"""What a table says besides the options of a part."""

LoadFunction = Callable[[str], Callable[..., Any]]
"""FILE.py:function -> the function."""


def build_rubric(given: str | Sequence[str | Mapping[str, Any]], load: LoadFunction) -> Rubric:
    """`given`: one reward or several, each a name, FILE.py:function, or a table with `use` and options."""
    parts: dict[str, RubricPart] = {}
    weights: dict[str, float] = {}
    for name, weight, part in _each([given] if isinstance(given, str | Mapping) else given, load):
        if name in (ENV, FORMAT):
            raise UserError(f'no reward can be called "{name}", which is taken: give it another with name = "..."')
        if name in parts:
            raise UserError(f'two rewards are called "{name}": give one of them another with name = "..."')
        parts[name], weights[name] = part, weight
    if not parts:
        raise UserError("reward is an empty list: give at least one")
    return Rubric(parts=parts, weights=weights)


def _each(given: Sequence[str | Mapping[str, Any]], load: LoadFunction) -> Iterator[tuple[str, float, RubricPart]]:
    for each in given:
        table = {"use": each} if isinstance(each, str) else each
        if not isinstance(table, Mapping) or not isinstance(table.get("use"), str):
            raise UserError('a reward says nothing of what it uses: give { use = "exact_match" } or a name')
        use, options = table["use"], {key: value for key, value in table.items() if key not in REWARD_TABLE_KEYS}
        default = use.rpartition(":")[2]
        yield read_name(table, default), read_weight(table, use), _part(use, options, load)


def read_name(table: Mapping[str, Any], default: str) -> str:
    name = table.get("name", default)
    if not isinstance(name, str) or not name:
        raise UserError(f'the name of the reward "{default}" is no text: give name = "..."')
    return name


def read_weight(table: Mapping[str, Any], use: str) -> float:
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise UserError(f'the weight of the reward "{use}" is no number: give weight = 1.0')
    return float(weight)


def _part(use: str, options: Mapping[str, Any], load: LoadFunction) -> RubricPart:
    if use.rpartition(":")[0].endswith(".py"):
        if options:
            told = f'the reward "{use}" has no option "{next(iter(options))}"'
            raise UserError(f"{told}: beside a function there are {' and '.join(REWARD_TABLE_KEYS[1:])}")
        return answer_reward(load(use), use)
    if use not in REWARD_TYPES:
        raise UserError(f'no reward "{use}":{suggest(use, REWARD_TYPES)} (or give FILE.py:function)')
    part: RubricPart = read_options(REWARD_TYPES[use], options, f'the reward "{use}"', besides=REWARD_TABLE_KEYS)
    if isinstance(part, AnswerJudge):
        bench_for(part)  # a key or a folder that is missing is told before anything starts
    return part


def judges_of(rubric: Rubric) -> list[JudgeClient]:
    """Where its judges sit."""
    return [bench_for(part) for part in rubric.parts.values() if isinstance(part, AnswerJudge)]


def answer_reward(function: Callable[..., Any], use: str) -> RubricPart:
    """function(answer, row), or function(answered) with the whole episode and its tools; it may be async."""
    check_reward_function(function, f'the reward "{use}"')
    whole = _takes_answered(function, use)

    async def part(answered: Submission) -> float:
        given = (answered,) if whole else (answered.answer, answered.row)
        told = f'the reward "{use}", on the answer {answered.answer[:60]!r},'
        value = await call_reward_function(function, *given, told=told, mend=lambda error: _mend(error, answered))
        if not math.isfinite(found := to_float(value)):
            raise not_a_number(value, function, told, "let it give a finite number")
        return found

    return part


def _mend(error: Exception, answered: Submission) -> str:
    if isinstance(error, KeyError) and error.args and (name := str(error.args[0])) not in answered.row:
        return f"if that is a column, the row has none of this name:{suggest_and_list(name, map(str, answered.row))}"
    return "let it give 0 where it cannot read an answer"


def _takes_answered(function: Callable[..., Any], use: str) -> bool:
    """Whether it wants all of the episode; else the answer and its row."""
    names, mend = required_parameters(function), "write function(answer, row) or function(answered)"
    if not accepts_arguments(function, 2) and not accepts_arguments(function, 1):
        raise UserError(f'the reward "{use}" takes other arguments: {mend}')
    if names == ["row", "answer"]:
        raise UserError(f'the reward "{use}" is given the answer first, and then its row: {mend}')
    if accepts_arguments(function, 2):
        return False
    if names in (["answer"], ["row"]):
        raise UserError(f'the reward "{use}" takes {names[0]} alone, and would be given the whole episode: {mend}')
    if names == ["trajectory"]:
        raise UserError(f'the reward "{use}" is one of trajectories: name it in reward.functions, or {mend}')
    return True


JUDGE = "judge"
JUDGE_TABLE_KEYS = ("name", "weight")
"""What a table says besides the options of a judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJudges:
    rewards: Mapping[str, GroupReward]
    weights: Mapping[str, float]


def judge_weights(given: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By the judges' names."""
    return {read_name(table, JUDGE): read_weight(table, JUDGE) for table in given}


def build_group_judges(given: Sequence[Mapping[str, Any]], decode: Decode, taken: Sequence[str] = ()) -> GroupJudges:
    """`decode`: token ids as text; `taken`: names that other rewards of the run have."""
    rewards: dict[str, GroupReward] = {}
    weights: dict[str, float] = {}
    for table in given:
        options = {key: value for key, value in table.items() if key not in JUDGE_TABLE_KEYS}
        settings: JudgeSettings = read_options(JudgeSettings, options, "a judge", besides=JUDGE_TABLE_KEYS)
        if settings.against or settings.shows != "answer":
            raise UserError("a judge of groups sees whole episodes and no rows: leave out against and shows")
        name = read_name(table, JUDGE)
        if name in rewards or name in (ENV, FORMAT, *taken):
            raise UserError(f'two rewards are called "{name}": give one of them another with name = "..."')
        rewards[name] = GroupJudge(settings=settings, bench=bench_for(settings), decode=decode)
        weights[name] = read_weight(table, JUDGE)
    return GroupJudges(rewards=rewards, weights=weights)
