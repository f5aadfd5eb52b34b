"""From what a recipe says of judges of whole groups to rewards.

[reward]
judges = [ { model = "...", rubric = "is polite", mode = "relative", weight = 0.3 } ]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.config.keys import read_options
from turnwise.core.errors import UserError
from turnwise.core.protocols import GroupReward
from turnwise.rewards.judge.benches import bench_for
from turnwise.rewards.judge.groups import GroupJudge
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.rewards.judge.transcript import Decode
from turnwise.rewards.making import read_name, read_weight
from turnwise.rewards.scoring import ENV, FORMAT

USE = "judge"
ABOUT = ("name", "weight")
"""What a table says besides the options of a judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJudges:
    rewards: Mapping[str, GroupReward]
    weights: Mapping[str, float]


def judge_weights(given: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By the judges' names."""
    return {read_name(table, USE): read_weight(table, USE) for table in given}


def make_judges(given: Sequence[Mapping[str, Any]], decode: Decode, taken: Sequence[str] = ()) -> GroupJudges:
    """`decode`: token ids as text; `taken`: names that other rewards of the run have."""
    rewards: dict[str, GroupReward] = {}
    weights: dict[str, float] = {}
    for table in given:
        options = {key: value for key, value in table.items() if key not in ABOUT}
        settings: JudgeSettings = read_options(JudgeSettings, options, "a judge", besides=ABOUT)
        if settings.against or settings.shows != "answer":
            raise UserError("a judge of groups sees whole episodes and no rows: leave out against and shows")
        name = read_name(table, USE)
        if name in rewards or name in (ENV, FORMAT, *taken):
            raise UserError(f'two rewards are called "{name}": give one of them another with name = "..."')
        rewards[name] = GroupJudge(settings=settings, bench=bench_for(settings), decode=decode)
        weights[name] = read_weight(table, USE)
    return GroupJudges(rewards=rewards, weights=weights)
