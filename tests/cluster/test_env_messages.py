"""Messages between episodes and environments on workers: exact, typed, with a version, and never pickle."""

import asyncio
import json
import math
import pickle
import threading
from dataclasses import replace
from typing import Any

import pytest

from episodes_for_tests import task_of
from turnwise.cluster.env_messages import Action, Opening, Reply, encode_reply
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, Outage, RewardFailure, UserError
from turnwise.core.messages import ImagePart, Message, Picture, TextPart, ToolCall, ToolSpec, assistant, system, user
from turnwise.core.protocols import Observation, StepResult

PICTURE = Picture(rows=(("player", "ice"), ("hole", "goal")), caption="Lake", info={"score": "3"}, html="<b>3</b>")
CALL = ToolCall(name="f", arguments="{bad", call_id="1")
MESSAGES = (
    system("Rules: \u00e4 \U0001f600 \x00"),
    Message(role="user", parts=(TextPart(text="Look:"), ImagePart(data=bytes(range(256))))),
    Message(
        role="assistant", parts=(TextPart(text="x"),), tool_calls=(ToolCall(name="f", arguments="{bad", call_id="1"),)
    ),
    Message(role="tool", parts=(TextPart(text="42"),), call_id="1"),
)
SPEC = ToolSpec(name="f", description="Adds.", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
OBSERVATION = Observation(messages=MESSAGES, tools=(SPEC,), tools_in_words="f(a)", picture=PICTURE)
RESULT = StepResult(
    messages=MESSAGES,
    reward=0.1 + 0.2,
    terminated=True,
    success=True,
    info={"actions": ["Left"], "rewards": {"env": 1e-9}, "state": None, "deep": [[1, 2], {"a": True}]},
    picture=PICTURE,
)


def sent(value: Observation | StepResult | None, seconds: float = 0.0) -> Reply:
    async def call() -> tuple[Observation | StepResult | None, float]:
        return value, seconds

    return Reply.decode(asyncio.run(encode_reply(call())))


def failed(error: Exception) -> Reply:
    async def call() -> tuple[None, float]:
        raise error

    return Reply.decode(asyncio.run(encode_reply(call())))


@pytest.mark.parametrize("value", [OBSERVATION, RESULT, StepResult(), Observation(messages=(user(""),), over=True)])
def test_what_an_environment_returns_arrives_as_it_was(value: Observation | StepResult) -> None:
    reply = sent(value, seconds=1.5)
    assert reply.read() == value and reply.seconds == 1.5


def test_what_an_episode_asks_for_arrives_as_it_was() -> None:
    task = replace(task_of("frozen_lake", 3, size=4, slippery=True), split="test")
    opening = Opening(task=task, member=2, attempt=1)
    assert Opening.decode(opening.encode()) == opening
    assert Action.decode(Action(message=MESSAGES[2]).encode()).message == MESSAGES[2]


def test_numbers_that_json_lacks_arrive_in_rewards() -> None:
    read = sent(StepResult(reward=math.inf)).read()
    assert isinstance(read, StepResult) and read.reward == math.inf


def test_info_arrives_as_it_is_recorded() -> None:
    read = sent(StepResult(info={"pair": (1, 2), "lock": threading.Lock()})).read()
    assert isinstance(read, StepResult)
    assert read.info["pair"] == [1, 2] and "lock" in read.info["lock"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UserError("Set a key."), UserError),
        (Outage("It is down."), Outage),
        (EnvironmentFailure("step raised"), EnvironmentFailure),
        (InfrastructureFailure("no answer"), InfrastructureFailure),
        (RewardFailure("no verdict"), RewardFailure),
    ],
)
def test_errors_keep_their_type_and_text(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as raised:
        failed(error).read()
    assert type(raised.value) is kind and str(raised.value) == str(error)


def test_errors_of_others_arrive_with_their_traceback() -> None:
    class Own(UserError):
        """Not one of ours: another process may not have it."""

    for error in (KeyError("missing"), Own("mine")):
        with pytest.raises(RuntimeError, match=r"Traceback(.|\n)*test_env_messages"):
            failed(error).read()


def test_what_json_cannot_hold_is_a_failure_of_the_environment() -> None:
    rows: Any = ((threading.Lock(),),)
    with pytest.raises(EnvironmentFailure, match="cannot be sent between processes"):
        sent(StepResult(picture=Picture(rows=rows))).read()


class Dangerous:
    def __reduce__(self) -> tuple[Any, ...]:
        raise AssertionError("was pickled")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"null",
        pickle.dumps({"reward": 1.0}),
        b'{"version": 2}',
        b'{"result": {"reward": "much"}}',
        b'{"result": {"messages": [{"role": "root"}]}}',
        b'{"results": {}}',
        json.dumps({"seconds": [1]}).encode(),
    ],
)
def test_messages_that_are_not_ours_are_refused_in_one_line(message: bytes) -> None:
    with pytest.raises(InfrastructureFailure, match="Run one version of turnwise on all nodes") as refused:
        Reply.decode(message)
    assert "\n" not in str(refused.value)


def test_nothing_is_pickled() -> None:
    read = sent(StepResult(info={"own": Dangerous()})).read()
    assert isinstance(read, StepResult) and "Dangerous" in read.info["own"]
    assert isinstance(json.loads(Action(message=assistant("hi")).encode()), dict)
