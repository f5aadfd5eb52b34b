"""Episodes that others recorded as text, one per row, as trajectories that can be trained on.

    conversation    the columns of `conversations.py`, and perhaps
                    reward      number: of the whole episode
                    rewards     list: one number per trained answer
                    success     true or false; without it, whether the last reward is positive
    steps           observations  [n or n + 1 texts], actions [n texts], rewards [n numbers], and perhaps terminations,
                    truncations [n], system (a text): the columns of a Minari episode whose spaces are text

An episode whose last truncation is true, and whose last termination is not, was cut by a time limit: the value after
its last action is not 0.

`demonstrations.py` encodes the texts once, with the model's chat template. The probability with which their author
wrote them is unknown.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.messages import Exchange, system, user
from turnwise.core.trajectory import Status
from turnwise.data.conversations import parse_conversation

STEP_COLUMNS = ("observations", "actions", "rewards")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenEpisode:
    """An episode of a row, not encoded yet."""

    exchanges: Sequence[Exchange]
    turn_rewards: tuple[float, ...] | None
    """One number per trained answer; None: unknown."""
    status: Status


def parse_episode(row: Any, where: str, folder: Path) -> WrittenEpisode:
    """Return the episode of a row. `where` names it in errors; paths of images begin in `folder`."""
    if isinstance(row, Mapping) and all(row.get(name) is not None for name in STEP_COLUMNS):
        return _parse_steps(row, where)
    exchanges, success = parse_conversation(row, where, folder), _parse_success(row, where)
    answers = sum(exchange.trained for exchange in exchanges)
    rewards = _parse_rewards(row, success, answers, where)
    return WrittenEpisode(exchanges=exchanges, turn_rewards=rewards, status=_find_status(row, success, rewards))


def _parse_success(row: Mapping[str, Any], where: str) -> bool | None:
    success = row.get("success")
    if success is not None and not isinstance(success, bool):
        raise UserError(f"{where}: success is {success!r}. Write true or false.")
    return success


def _parse_rewards(row: Mapping[str, Any], success: bool | None, answers: int, where: str) -> tuple[float, ...] | None:
    if row.get("rewards") is not None:
        rewards = row["rewards"]
        if not isinstance(rewards, list) or len(rewards) != answers:
            raise UserError(f"{where}: rewards must be a list of {answers} numbers, one per answer.")
        return tuple(_number(reward, "rewards", where) for reward in rewards)
    if row.get("reward") is None and success is None:
        return None
    total = float(bool(success)) if row.get("reward") is None else _number(row["reward"], "reward", where)
    return (*[0.0] * (answers - 1), total)


def _find_status(row: Mapping[str, Any], success: bool | None, rewards: Sequence[float] | None) -> Status:
    """Return the status: success, a time limit, or else whether the last reward is positive.

    A conversation without rewards is a demonstration.
    """
    if not success and _is_last_true(row.get("truncations")) and not _is_last_true(row.get("terminations")):
        return Status.TRUNCATED_LIMIT
    if success is not None:
        return Status.SUCCEEDED if success else Status.FAILED
    return Status.SUCCEEDED if rewards is None or rewards[-1] > 0 else Status.FAILED


def _is_last_true(column: Any) -> bool:
    return isinstance(column, list) and bool(column) and bool(column[-1])


def _number(value: Any, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{where}: {name} has {value!r}, which is not a finite number.")
    return float(value)


def _parse_steps(row: Mapping[str, Any], where: str) -> WrittenEpisode:
    observations, actions, rewards = (_list(row[name], name, where) for name in STEP_COLUMNS)
    if not actions or len(rewards) != len(actions) or len(observations) not in (len(actions), len(actions) + 1):
        raise UserError(
            f"{where} has {len(observations)} observations, {len(actions)} actions and {len(rewards)} rewards. Give as "
            "many rewards as actions, and as many observations or one more."
        )
    opening = () if row.get("system") is None else (system(_text(row["system"], "system", where)),)
    exchanges = [
        Exchange(
            messages=(*(opening if number == 0 else ()), user(_text(observation, "observations", where))),
            answer=_text(action, "actions", where),
        )
        for number, (observation, action) in enumerate(zip(observations, actions, strict=False))
    ]
    turn_rewards = tuple(_number(reward, "rewards", where) for reward in rewards)
    status = _find_status(row, _parse_success(row, where), turn_rewards)
    return WrittenEpisode(exchanges=exchanges, turn_rewards=turn_rewards, status=status)


def _list(value: Any, name: str, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"{where}: {name} is not a list. Write one value per step.")
    return value


def _text(value: Any, name: str, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise UserError(f"{where}: {name} has a {type(value).__name__}. Write texts, which the model can read.")
