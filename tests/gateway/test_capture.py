"""One episode without HTTP: what is recorded is what was sampled, in every conversation that an agent can hold."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contexts_for_tests import TEMPLATE_NAMES, renderer_of
from episodes_for_tests import limits, renderer, says, spoken
from gateway_for_tests import FunctionPolicy, RecordingPolicy, full_contexts, open_episode, request_of, run_episode
from turnwise.core.messages import Message, ToolCall, ToolSpec, assistant, system, text_parts, user
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.trajectory import Stop
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.scripted import ScriptedEngine
from turnwise.gateway.chat import ContextOverflow, GatewayError, RequestError
from turnwise.gateway.fields import add_thinking
from turnwise.gateway.sessions import SessionPool
from turnwise.gateway.store import CallStore
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import load_model
from turnwise.render.renderer import Renderer

ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {"a": {"type": "number"}}})
SUB = replace(ADD, name="sub")
ANSWERS = (
    "hello",
    "  spaces  ",
    "",
    "naïve ünïcode 🙂",
    "<think>let me see</think>The answer is 4.",
    "<think>never closed",
    "</think>closed only",
    '<tool_call>{"name": "add", "arguments": {"b": 2,  "a": 1.0}}</tool_call>',
    'Calling.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>{"name": "sub", "arguments": {}}</tool_call>',
    '<think>hm</think><tool_call>{"name": "add", "arguments": "not json"}</tool_call>',
    "<tool_call>{broken</tool_call>",
    '<tool_call>{"name": "\\ud800", "arguments": "\\udfff"}</tool_call>',
    "<|im_end|><|im_start|>system",
)


def script_of(templated: Renderer, seed: int) -> ScriptedEngine:
    """Return a policy that writes one of ANSWERS byte by byte, or random tokens, and sometimes does not stop."""
    stop_id = min(templated.stop_ids)

    def write(key: Any, turn: int, ids: list[int]) -> list[int]:
        rng = random.Random(f"{seed} {key.branch} {turn} {len(ids)}")
        if rng.random() < 0.2:
            return [rng.randrange(3, 250) for _ in range(rng.randrange(1, 30))]
        action = list(rng.choice(ANSWERS).encode())
        return [*action, stop_id] if rng.random() < 0.8 else action or [65]

    return ScriptedEngine(write, sorted(templated.stop_ids))


@dataclass
class Spoken:
    """A conversation that ends with a reply, as the agent has it."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    call: str
    reply: Message
    thinking: str


@dataclass
class Agent:
    """Makes random requests: continues conversations, edits and shortens them, samples several replies in parallel."""

    rng: random.Random
    heard: list[Spoken] = field(default_factory=list)
    continued: list[tuple[str, str]] = field(default_factory=list)
    """(call, call that continued it without any edit)."""
    forgot: list[tuple[str, str]] = field(default_factory=list)
    """(call, call that continued it without its thinking)."""

    async def act(self, episode: Any) -> None:
        choice = self.rng.random()
        if not self.heard or choice < 0.2:
            await self.ask(episode, self.opening(), self.rng.choice([(), (ADD, SUB)]))
        elif choice < 0.7:
            spoken = self.rng.choice(self.heard[-4:])
            drops = self.rng.random() < 0.3
            await self.ask(episode, self.continuation(spoken, drops), spoken.tools, spoken, drops)
        elif choice < 0.8:
            spoken = self.rng.choice(self.heard)
            await self.ask(episode, (*spoken.messages, assistant("I wrote this."), user("And?")), spoken.tools)
        elif choice < 0.9:
            spoken = self.rng.choice(self.heard)
            await self.ask(episode, (user("Shorter."), self.sent_back(spoken), user("Go on.")), spoken.tools)
        else:
            await asyncio.gather(*(self.act(episode) for _ in range(2)))

    def opening(self) -> tuple[Message, ...]:
        start = [system(self.rng.choice(["Be kind.", "<|im_end|> be rude"]))] if self.rng.random() < 0.5 else []
        return (*start, user(self.rng.choice(["Hi", "1 + 1?", "</s><s> <think>"])))

    def continuation(self, spoken: Spoken, drops: bool) -> tuple[Message, ...]:
        reply = self.sent_back(replace(spoken, thinking="") if drops else spoken)
        answers = [
            Message(role="tool", parts=text_parts(f"result {number}"), call_id=call.call_id)
            for number, call in enumerate(reply.tool_calls)
        ]
        return (*spoken.messages, reply, *(answers or [user(self.rng.choice(["More", "", "<|im_start|>"]))]))

    def sent_back(self, spoken: Spoken) -> Message:
        """Return the reply as some client would send it back."""
        reply = spoken.reply
        calls = reply.tool_calls
        if self.rng.random() < 0.5:
            calls = tuple(replace(call, arguments=reserialised(call.arguments)) for call in calls)
        if self.rng.random() < 0.3:
            calls = tuple(replace(call, call_id=f"own_{number}") for number, call in enumerate(calls))
        content = reply.content.strip() if self.rng.random() < 0.5 else reply.content
        return replace(reply, parts=add_thinking(spoken.thinking, text_parts(content)), tool_calls=calls)

    async def ask(
        self, episode: Any, messages: Any, tools: Any, continues: Spoken | None = None, drops: bool = False
    ) -> None:
        request = request_of(*messages, tools=tools, n=self.rng.choice([1, 1, 1, 2]))
        for reply in await episode.reply(request):
            self.heard.append(Spoken(tuple(messages), tuple(tools), reply.call, reply.message, reply.thinking))
            if continues is not None:
                pairs = self.forgot if drops and continues.thinking else self.continued
                pairs.append((continues.call, reply.call))

    def possible_ids(self, call: str, by_call: Any) -> list[tuple[int, ...]]:
        """Return the ids that the conversation of a call may have: the agent cannot tell equal replies apart."""
        (continued,) = (spoken for spoken in self.heard if spoken.call == call)
        context = by_call[call][0]
        same = [spoken for spoken in self.heard if looks(spoken) == looks(continued)]
        return [(*context, *by_call[each.call][1].action_ids) for each in same if by_call[each.call][0] == context]


def looks(spoken: Spoken) -> Any:
    calls = [(call.name, reserialised(call.arguments)) for call in spoken.reply.tool_calls]
    return spoken.thinking, spoken.reply.content.strip(), calls


def reserialised(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), indent=2, sort_keys=True)
    except ValueError:
        return arguments


@settings(max_examples=40, deadline=None)
@given(template=st.sampled_from([*TEMPLATE_NAMES, "tiny"]), seed=st.integers(0, 2**32), sessions=st.integers(1, 5))
def test_episode_records_exactly_what_was_sampled(template: str, seed: int, sessions: int):
    templated = renderer_of(template)
    policy = RecordingPolicy(script_of(templated, seed))
    agent = Agent(random.Random(seed))

    async def run():
        async with open_episode(policy, renderer=templated, max_sessions=sessions) as episode:
            for _ in range(8):
                await agent.act(episode)
            return episode.turns()

    turns = asyncio.run(run())
    recorded = full_contexts(turns)
    sampled = Counter((context, completion.ids) for context, completion in policy.samples)
    assert Counter((context, turn.action_ids) for context, turn in recorded) == sampled
    assert all(len(turn.action_ids) == len(turn.action_logprobs) for turn in turns)
    by_call = {turn.info["call"]: (context, turn) for context, turn in recorded}
    assert set(by_call) == {spoken.call for spoken in agent.heard}
    for before, after in agent.continued:
        assert any(by_call[after][0][: len(ids)] == ids for ids in agent.possible_ids(before, by_call))
    for before, after in agent.forgot:
        assert all(by_call[after][0][: len(ids)] != ids for ids in agent.possible_ids(before, by_call))
    assert policy.open_sessions == 0
    assert policy.most_open <= sessions


@pytest.mark.parametrize("sent", ["kept", "dropped", "edited", "hidden"])
def test_episode_branches_where_a_client_drops_the_thinking(sent: str):
    """Thinking that the reply did not show cannot be sent back, so it stays."""
    said = "<think>two and two</think>\n\nIt is  4."
    policy = RecordingPolicy(says(said, "5"))

    async def talk(episode):
        (first,) = await episode.reply(request_of(user("2 + 2?"), shows_thinking=sent != "hidden"))
        thinking = {"kept": first.thinking, "edited": "three and one"}.get(sent, "")
        back = replace(first.message, parts=add_thinking(thinking, first.message.parts))
        await episode.reply(request_of(user("2 + 2?"), back, user("Sure?")))
        return first

    first, turns, _ = run_episode(policy, talk)
    assert (first.message.content, first.thinking) == ("It is  4.", "two and two")
    assert [turn.extends for turn in turns] == [False, sent in ("kept", "hidden")]
    if sent == "dropped":
        following = renderer().extend([user("Sure?")], Stop.EOS)
        assert turns[1].context_ids == (*turns[0].context_ids, *spoken("It is  4."), *following)
    assert ("two and two" in renderer().decode(full_contexts(turns)[1][0])) == (sent in ("kept", "hidden"))


def test_episode_extends_reserialised_tool_calls_under_other_ids():
    call = '<tool_call>{"name": "add", "arguments": {"b": 2, "a": 1.0}}</tool_call>'

    def history(call_id: str) -> list[Message]:
        again = ToolCall(name="add", arguments='{"a":1,"b":2}', call_id=call_id)
        answer = Message(role="tool", parts=text_parts("3"), call_id=call_id)
        return [user("Add"), Message(role="assistant", tool_calls=(again,)), answer]

    async def talk(episode):
        (first,) = await episode.reply(request_of(user("Add"), tools=(ADD,)))
        (second,) = await episode.reply(request_of(*history("mine"), tools=(ADD,)))
        await episode.reply(request_of(*history("another"), second.message, user("Thanks"), tools=(ADD,)))
        return first

    first, turns, _ = run_episode(RecordingPolicy(says(call, "3")), talk)
    assert first.stop == "tool_calls"
    assert first.message.content == ""
    assert first.message.tool_calls[0].arguments == '{"b": 2, "a": 1.0}'
    assert [turn.extends for turn in turns] == [False, True, True]


def test_episode_with_other_tools_starts_a_branch():
    async def talk(episode):
        (first,) = await episode.reply(request_of(user("Add"), tools=(ADD,)))
        await episode.reply(request_of(user("Add"), first.message, user("Go"), tools=(SUB,)))

    policy = RecordingPolicy(says("ok", "done"))
    _, turns, _ = run_episode(policy, talk)
    assert [turn.extends for turn in turns] == [False, False]
    assert "sub" in renderer().decode(turns[1].context_ids)
    assert "add" not in renderer().decode(turns[1].context_ids)
    assert policy.keys[0].branch == 0
    assert policy.keys[1].branch != 0


def test_episode_edited_reply_is_context_of_a_new_branch():
    async def talk(episode):
        await episode.reply(request_of(user("Hi")))
        await episode.reply(request_of(user("Hi"), assistant("I never said this."), user("Go")))

    policy = RecordingPolicy(says("hello"))
    _, turns, _ = run_episode(policy, talk)
    assert [turn.extends for turn in turns] == [False, False]
    assert "I never said this." in renderer().decode(turns[1].context_ids)
    assert [turn.action_ids for turn in turns] == [completion.ids for _, completion in policy.samples]


def test_episode_shortened_history_keeps_the_sampled_ids():
    """A reply that is shown after other messages has its sampled ids there too, not those of its text."""

    async def talk(episode):
        (first,) = await episode.reply(request_of(user("Long story"), tools=()))
        await episode.reply(request_of(user("Summary"), first.message, user("Go")))

    _, turns, _ = run_episode(RecordingPolicy(says("hello", "bye")), talk)
    sampled, context = turns[0].action_ids, turns[1].context_ids
    assert any(context[at : at + len(sampled)] == sampled for at in range(len(context)))
    assert not turns[1].extends


def test_episode_parallel_requests_are_branches_with_their_own_randomness():
    policy = RecordingPolicy(says("hello", "again"))

    async def talk(episode):
        (first,) = await episode.reply(request_of(user("Hi")))
        asks = [request_of(user("Hi"), first.message, user("More")) for _ in range(3)]
        await asyncio.gather(*(episode.reply(ask) for ask in asks))

    _, turns, _ = run_episode(policy, talk)
    assert sorted(turn.extends for turn in turns) == [False, False, False, True]
    assert len({key.address for key in policy.keys}) == 3
    full = [context for context, turn in full_contexts(turns) if turn.info["branch"] or turn.extends]
    assert len(set(full)) == 1


def test_episode_branch_randomness_does_not_depend_on_arrival():
    def keys(order: list[str]) -> set[int]:
        policy = RecordingPolicy(says("hello"))

        async def talk(episode):
            for text in ["first", *order]:
                await episode.reply(request_of(user(text)))

        run_episode(policy, talk)
        return {key.branch for key in policy.keys}

    assert keys(["a", "b"]) == keys(["b", "a"])


@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_episode_retry_gets_the_recorded_answer_or_joins_the_call(delay: float):
    policy = RecordingPolicy(says("hello", "other"))

    async def talk(episode):
        request = request_of(user("Hi"))
        first = asyncio.create_task(episode.reply(request))
        await asyncio.sleep(delay)
        return await episode.reply(request, retry=1), await first

    (again, first), turns, _ = run_episode(policy, talk)
    assert again == first
    assert len(turns) == len(policy.samples) == 1


def test_episode_equal_requests_without_retry_are_sampled_again():
    policy = RecordingPolicy(says("hello"))

    async def talk(episode):
        request = request_of(user("Hi"))
        a, b = await asyncio.gather(episode.reply(request), episode.reply(request))
        retries = await asyncio.gather(episode.reply(request, retry=1), episode.reply(request, retry=1))
        return {a[0].call, b[0].call}, {each[0].call for each in retries}

    (calls, retried), turns, _ = run_episode(policy, talk)
    assert calls == retried
    assert len(turns) == len(policy.samples) == 2


class FailingOnce:
    """A store that fails to write its second call."""

    def __init__(self) -> None:
        self._store, self._calls = CallStore(None), 0

    async def add_calls(self, calls: Any) -> None:
        self._calls += 1
        if self._calls == 2:
            raise OSError("disk full")
        await self._store.add_calls(calls)

    def close(self) -> None:
        self._store.close()


def test_episode_failed_write_is_not_recorded_and_its_retry_is_exact():
    policy = RecordingPolicy(says("hello"))

    async def talk(episode):
        (first,) = await episode.reply(request_of(user("Hi")))
        request = request_of(user("Hi"), first.message, user("More"))
        with pytest.raises(OSError, match="disk full"):
            await episode.reply(request)
        await episode.reply(request, retry=1)

    _, turns, episode = run_episode(policy, talk, store=FailingOnce())
    assert isinstance(episode.failure, OSError)
    assert [turn.extends for turn in turns] == [False, True]
    context, completion = policy.samples[-1]
    assert full_contexts(turns)[1] == (context, turns[1])
    assert turns[1].action_ids == completion.ids


def test_episode_overflow_is_an_error_of_the_provider():
    async def talk(episode):
        with pytest.raises(ContextOverflow):
            await episode.reply(request_of(user("word " * 3000)))
        with pytest.raises(ContextOverflow) as raised:
            await episode.reply(request_of(user("word " * 60)))
        return raised.value

    error, turns, episode = run_episode(says("hello"), talk, limits=limits(max_tokens=64))
    assert (error.status, error.kind) == (400, "context_length")
    assert episode.overflowed
    assert not turns


def test_episode_enforces_sampling_and_records_the_request():
    seen = list[Sampling]()

    async def generate(sampling: Sampling) -> Completion:
        seen.append(sampling)
        return Completion(ids=(72,), logprobs=(-0.5,), stop=Stop.LENGTH, temperature=1.0, policy_versions=(7,))

    async def talk(episode):
        return await episode.reply(
            request_of(user("Hi"), temperature=0.1, max_tokens=3, stop=("END",), wishes={"temperature": 0.1})
        )

    (reply,), (turn,), _ = run_episode(FunctionPolicy(generate), talk)
    assert seen == [Sampling(max_tokens=3, temperature=1.0, stop=("END",))]
    assert turn.info["asked"] == {"temperature": 0.1}
    assert (reply.stop, reply.policy_version, turn.action_logprobs) == ("length", 7, (-0.5,))


def test_episode_stop_string_ends_the_reply_and_extends():
    """As agents of the ReAct kind use it: the reply ends before the stop string, the ids keep it."""

    async def generate(sampling: Sampling) -> Completion:
        said = tuple(b"Action: look\nObservation:")
        return Completion(ids=said, logprobs=(0.0,) * len(said), stop=Stop.STRING, temperature=1.0)

    async def talk(episode):
        (first,) = await episode.reply(request_of(user("Go"), stop=("Observation:",)))
        await episode.reply(request_of(user("Go"), first.message, user("A door."), stop=("Observation:",)))
        return first

    first, turns, _ = run_episode(FunctionPolicy(generate), talk)
    assert first.message.content == "Action: look\n"
    assert first.stop_string == "Observation:"
    assert [turn.extends for turn in turns] == [False, True]


def test_episode_refuses_a_last_message_of_the_assistant():
    async def talk(episode):
        with pytest.raises(RequestError, match="last message"):
            await episode.reply(request_of(user("Hi"), assistant("prefill")))

    run_episode(says("hello"), talk)


def test_episode_closed_stops_running_calls():

    async def generate(sampling: Sampling) -> Completion:
        await asyncio.Event().wait()
        raise AssertionError

    async def talk(episode):
        running = asyncio.create_task(episode.reply(request_of(user("Hi"))))
        await asyncio.sleep(0.01)
        await episode.close()
        with pytest.raises(GatewayError) as raised:
            await running
        assert raised.value.status == 409
        with pytest.raises(GatewayError):
            await episode.reply(request_of(user("Hi")))

    run_episode(FunctionPolicy(generate), talk)


def test_pool_pause_waits_for_running_calls_and_blocks_new_ones():
    events = list[str]()

    async def generate(sampling: Sampling) -> Completion:
        events.append("begins")
        await asyncio.sleep(0.01)
        events.append("ends")
        return Completion(ids=(72,), logprobs=(0.0,), stop=Stop.LENGTH, temperature=1.0)

    async def run():
        policy = RecordingPolicy(FunctionPolicy(generate))
        pool = SessionPool(policy, 4)
        async with open_episode(policy, sessions=pool) as episode:
            first = asyncio.create_task(episode.reply(request_of(user("Hi"))))
            while not events:
                await asyncio.sleep(0)
            await pool.pause()
            assert policy.open_sessions == 0
            events.append("update")
            second = asyncio.create_task(episode.reply(request_of(user("Ho"))))
            await asyncio.sleep(0.02)
            events.append("resume")
            pool.resume()
            await asyncio.gather(first, second)

    asyncio.run(run())
    assert events == ["begins", "ends", "update", "resume", "begins", "ends"]


def test_episode_without_end_forgets_old_branches_and_still_answers():
    policy = RecordingPolicy(says("hello"))

    async def talk(episode):
        (first,) = await episode.reply(request_of(user("first")))
        for number in range(5):
            await episode.reply(request_of(user(f"other {number}")))
        kept = episode.calls
        (again,) = await episode.reply(request_of(user("first"), first.message, user("More")))
        return kept, again.message.content

    found, turns, _ = run_episode(policy, talk, keep=3)
    assert found == (3, "hello")
    assert [turn.extends for turn in turns] == [False, False, False]
    assert policy.open_sessions == 0


def test_episode_native_engine_logprobs_are_those_of_the_context():
    """Branches, evicted sessions and weight updates in between do not change what tokens are conditioned on."""
    loaded = load_model("tiny", dtype="float32", device="cpu", attn_implementation=ATTENTION)
    tokens = Renderer(loaded.tokenizer, loaded.stop_ids)
    engine = NativeEngine(loaded.model, slots=2, stop_ids=tokens.stop_ids, decode=tokens.decode)

    async def run():
        pool = SessionPool(engine, 2)
        bounds = limits(max_new_tokens=12)
        async with open_episode(engine, sessions=pool, renderer=tokens, limits=bounds) as episode:
            said = [user("Hi")]
            for number in range(3):
                replies = await episode.reply(request_of(*said, n=3))
                said += [replies[number].message, user("More")]
                if number == 1:
                    await pool.pause()
                    await engine.publish(5, loaded.model)
                    pool.resume()
            return episode.turns()

    turns = asyncio.run(run())
    assert len(turns) == 9
    assert {version for turn in turns for version in turn.policy_versions} == {0, 5}
    plain = load_model("tiny", dtype="float32", device="cpu", attn_implementation="eager").model
    for context, turn in full_contexts(turns):
        ids = torch.tensor([[*context, *turn.action_ids]])
        with torch.no_grad():
            logprobs = plain(ids).logits[0].log_softmax(-1)
        expected = logprobs[len(context) - 1 : -1].gather(-1, ids[0, len(context) :, None])[:, 0]
        assert torch.allclose(expected, torch.tensor(turn.action_logprobs), atol=1e-4)
