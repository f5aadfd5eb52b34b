"""Rewards from a recipe's settings.

[env]
reward = "myreward.py:score"                                       # score(answer, row) -> a number
reward = [ { use = "exact_match" }, { use = "judge", model = "...", rubric = "cites its source", weight = 0.3 } ]

[reward]
judges = [ { model = "...", rubric = "is polite", mode = "relative", weight = 0.3 } ]
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.protocols import GroupReward
from turnwise.rewards.functions import answer_reward
from turnwise.rewards.judge.client import JudgeClient
from turnwise.rewards.judge.judges import (
    AnswerJudge,
    AnswerJudgeSettings,
    GroupJudge,
    StateJudge,
    StateJudgeSettings,
)
from turnwise.rewards.judge.prompts import Decode
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.rewards.math_answers import SymbolicMath
from turnwise.rewards.rubric import RewardSettings, Rubric, RubricPart
from turnwise.rewards.scoring import ENV, FORMAT
from turnwise.rewards.services import RewardServices
from turnwise.rewards.sql_results import SqlResult
from turnwise.rewards.text_answers import F1, ExactMatch, LengthPenalty, RegexMatch, RepetitionPenalty
from turnwise.rewards.unit_tests import UnitTests
from turnwise.settings.options import read_options
from turnwise.text.suggestions import suggest

REWARD_TYPES: dict[str, type[Any]] = {
    "exact_match": ExactMatch,
    "f1": F1,
    "math": SymbolicMath,
    "unit_tests": UnitTests,
    "sql": SqlResult,
    "regex": RegexMatch,
    "length": LengthPenalty,
    "repetition": RepetitionPenalty,
    "judge": AnswerJudgeSettings,
}
"""Rewards by the name that `use` gives. The fields of the class are the options."""
REWARD_KEYS = ("use", "name", "weight")
"""Keys of a reward's table that are not options of the reward."""
JUDGE = "judge"
JUDGE_KEYS = ("name", "weight")
"""Keys of a judge's table that are not options of the judge."""

LoadFunction = Callable[[str], Callable[..., Any]]
"""From FILE.py:function to the function."""


def build_rubric(
    settings: RewardSettings | Sequence[str | Mapping[str, Any]], load: LoadFunction, services: RewardServices
) -> Rubric:
    """Build a rubric, or return the one that these services have built from equal settings."""
    key = json.dumps(settings)
    if key not in services.rubrics:
        services.rubrics[key] = _build_rubric(
            [settings] if isinstance(settings, str | Mapping) else settings, load, services
        )
    return services.rubrics[key]


def _build_rubric(settings: Sequence[str | Mapping[str, Any]], load: LoadFunction, services: RewardServices) -> Rubric:
    parts: dict[str, RubricPart] = {}
    weights: dict[str, float] = {}
    columns: dict[str, str] = {}
    for name, weight, column, part in _read_parts(settings, load, services):
        if name in (ENV, FORMAT):
            raise UserError(f'The reward name "{name}" is reserved: choose another with name = "...".')
        if name in parts:
            raise UserError(f'Two rewards are called "{name}": rename one of them with name = "...".')
        parts[name], weights[name] = part, weight
        if column:
            columns[name] = column
    if not parts:
        raise UserError("The list of rewards is empty: give at least one reward.")
    return Rubric(parts=parts, weights=weights, columns=columns)


def _read_parts(
    settings: Sequence[str | Mapping[str, Any]], load: LoadFunction, services: RewardServices
) -> Iterator[tuple[str, float, str, RubricPart]]:
    """Yield name, weight, reference column and part."""
    for setting in settings:
        table = {"use": setting} if isinstance(setting, str) else setting
        if not isinstance(table, Mapping) or not isinstance(table.get("use"), str):
            raise UserError('A reward does not say what it uses: give { use = "exact_match" } or a name.')
        use, options = table["use"], {key: value for key, value in table.items() if key not in REWARD_KEYS}
        name, weight = read_name(table, use.rpartition(":")[2]), read_weight(table, use)
        yield name, weight, *_build_part(use, options, load, services)


def _build_part(
    use: str, options: Mapping[str, Any], load: LoadFunction, services: RewardServices
) -> tuple[str, RubricPart]:
    if use.rpartition(":")[0].endswith(".py"):
        if options:
            raise UserError(
                f'The reward "{use}" has no option "{next(iter(options))}": '
                f"functions take only {' and '.join(REWARD_KEYS[1:])}"
            )
        return "", answer_reward(load(use), use)
    if use not in REWARD_TYPES:
        raise UserError(f'No reward "{use}":{suggest(use, REWARD_TYPES)} (or give FILE.py:function).')
    part = read_options(REWARD_TYPES[use], options, f'the reward "{use}"', other_keys=REWARD_KEYS)
    column = str(part.against) if "against" in type(part).model_fields else ""
    if isinstance(part, AnswerJudgeSettings):
        return column, AnswerJudge(settings=part, client=services.judges.client(part))
    if isinstance(part, SymbolicMath):
        return column, part.with_verifier(services.math_verifier)
    return column, part


def read_name(table: Mapping[str, Any], default: str) -> str:
    name = table.get("name", default)
    if not isinstance(name, str) or not name:
        raise UserError(f'The name of the reward "{default}" is not a text: give name = "...".')
    return name


def read_weight(table: Mapping[str, Any], use: str) -> float:
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise UserError(f'The weight of the reward "{use}" is not a number: give weight = 1.0.')
    return float(weight)


def rubric_judges(rubric: Rubric) -> list[JudgeClient]:
    return [part.client for part in rubric.parts.values() if isinstance(part, AnswerJudge)]


def build_state_judge(
    table: Mapping[str, Any], services: RewardServices | None = None, *, setting: str = "env.params.state_judge"
) -> StateJudge:
    """Build the judge of described states. Without `services` it has a budget of its own; errors name `setting`."""
    settings = read_options(StateJudgeSettings, table, setting)
    return StateJudge(settings=settings, client=(services or RewardServices()).judges.client(settings))


def judge_weights(tables: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the weights of `reward.judges` by name."""
    return {read_name(table, JUDGE): read_weight(table, JUDGE) for table in tables}


def build_group_judges(
    tables: Sequence[Mapping[str, Any]], judges: JudgeRegistry, decode: Decode, taken: Sequence[str] = ()
) -> dict[str, GroupReward]:
    """Build the judges of `reward.judges`. `decode`: token ids to text; `taken`: names of the run's other rewards."""
    rewards: dict[str, GroupReward] = {}
    for table in tables:
        options = {key: value for key, value in table.items() if key not in JUDGE_KEYS}
        settings: JudgeSettings = read_options(JudgeSettings, options, "a judge", other_keys=JUDGE_KEYS)
        if settings.against or settings.shows != "answer":
            raise UserError("A judge of groups always sees whole episodes and no task rows: remove against and shows.")
        name = read_name(table, JUDGE)
        if name in rewards or name in (ENV, FORMAT, *taken):
            raise UserError(f'Two rewards are called "{name}": rename one of them with name = "...".')
        read_weight(table, JUDGE)
        rewards[name] = GroupJudge(settings=settings, client=judges.client(settings), decode=decode)
    return rewards
