"""Episodes that others recorded as text."""

from pathlib import Path
from typing import Any

import pytest

from episodes_for_tests import renderer
from turnwise.core.errors import UserError
from turnwise.core.trajectory import Status
from turnwise.data.demonstrations import build_demonstration, build_episode
from turnwise.data.episodes import parse_episode
from turnwise.data.samples import build_samples

TALK = [
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "left"},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "content": "right"},
]
STEPS = {"observations": ["Where?", "And now?", "The end."], "actions": ["left", "right"], "rewards": [0.5, 1]}


@pytest.mark.parametrize(
    ("columns", "rewards", "status"),
    [
        ({}, None, Status.SUCCEEDED),
        ({"reward": 2}, (0.0, 2.0), Status.SUCCEEDED),
        ({"reward": 0}, (0.0, 0.0), Status.FAILED),
        ({"reward": 0, "success": True}, (0.0, 0.0), Status.SUCCEEDED),
        ({"rewards": [0.5, 1.0]}, (0.5, 1.0), Status.SUCCEEDED),
        ({"rewards": [0.5, -1.0]}, (0.5, -1.0), Status.FAILED),
        ({"success": True}, (0.0, 1.0), Status.SUCCEEDED),
        ({"success": False}, (0.0, 0.0), Status.FAILED),
        ({"success": False, "reward": 0.25}, (0.0, 0.25), Status.FAILED),
    ],
)
def test_conversation_may_have_rewards(columns: dict[str, Any], rewards: Any, status: Status) -> None:
    found = parse_episode({"messages": TALK, **columns}, "line 1", Path())
    assert (found.turn_rewards, found.status) == (rewards, status)


def test_steps_are_a_conversation_with_rewards() -> None:
    steps, talk = parse_episode(STEPS, "line 1", Path()), parse_episode({"messages": TALK}, "line 1", Path())
    assert list(steps.exchanges) == list(talk.exchanges)
    assert steps.turn_rewards == (0.5, 1.0)
    assert steps.status is Status.SUCCEEDED
    assert parse_episode({**STEPS, "rewards": [1, 0]}, "line 1", Path()).status is Status.FAILED
    opened = parse_episode({**STEPS, "system": "Be brief."}, "line 1", Path()).exchanges[0]
    assert [message.role for message in opened.messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("columns", "status"),
    [
        ({"truncations": [False, True]}, Status.TRUNCATED_LIMIT),
        ({"truncations": [False, True], "terminations": [False, False]}, Status.TRUNCATED_LIMIT),
        ({"truncations": [False, True], "success": False}, Status.TRUNCATED_LIMIT),
        ({"truncations": [False, True], "success": True}, Status.SUCCEEDED),
        ({"truncations": [False, True], "terminations": [False, True]}, Status.SUCCEEDED),
        ({"truncations": [True, False]}, Status.SUCCEEDED),
    ],
)
def test_truncated_steps_end_at_a_time_limit(columns: dict[str, Any], status: Status) -> None:
    assert parse_episode({**STEPS, **columns}, "line 1", Path()).status is status


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": TALK, "reward": "high"}, "line 7: reward has 'high'"),
        ({"messages": TALK, "reward": float("nan")}, "line 7: reward has nan"),
        ({"messages": TALK, "rewards": [1.0]}, "line 7: rewards must be a list of 2 numbers"),
        ({"messages": TALK, "success": "yes"}, "line 7: success is 'yes'"),
        ({**STEPS, "success": 1}, "line 7: success is 1. Write true or false"),
        ({**STEPS, "actions": ["left"]}, "line 7 has 3 observations, 1 actions and 2 rewards"),
        ({**STEPS, "observations": [[1, 2], [3, 4]]}, "line 7: observations has a list"),
        ({**STEPS, "actions": "left"}, "line 7: actions is not a list"),
        ({"other": 1}, "line 7 has only the columns other"),
        ([1], "line 7 is not an object"),
    ],
)
def test_unusable_rows_are_named(row: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_episode(row, "line 7", Path())
    assert str(error.value).startswith(message)


def test_built_episode_has_the_ids_of_the_demonstration() -> None:
    weighted = [{**TALK[1], "weight": 0} if message is TALK[1] else message for message in TALK]
    for messages, turns in ((TALK, 2), (weighted, 1)):
        episode = parse_episode({"messages": messages, "reward": 1.0}, "line 1", Path())
        trajectory = build_episode(episode, "demos", renderer())
        (sample,) = build_samples([trajectory])
        expected = build_demonstration(0, episode.exchanges, renderer())
        assert sample.ids.tolist() == expected.ids.tolist()
        assert sample.mask.tolist() == expected.mask.tolist()
        assert len(trajectory.turns) == turns
        assert trajectory.total_reward == 1.0


def test_episodes_with_one_opening_are_one_task() -> None:
    first, second, other = (
        build_episode(parse_episode({"messages": messages, "reward": 1.0}, "line 1", Path()), "demos", renderer())
        for messages in (TALK, [TALK[0], {"role": "assistant", "content": "up"}], TALK[2:])
    )
    assert first.task == second.task
    assert first.task != other.task
