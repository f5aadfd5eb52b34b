"""Sampled choices as recorded calls, and recorded calls read back from the store."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.core.constraint import Constraint
from turnwise.core.messages import Message, ToolCall
from turnwise.core.protocols import Completion, StepResult
from turnwise.core.random_streams import address
from turnwise.core.trajectory import Stop, Turn
from turnwise.gateway.chat import ChatReply, ChatRequest, ReplyStop
from turnwise.gateway.conversation import Digest, digest, digest_reply, reply_message
from turnwise.gateway.reading import ReplyText, read_reply
from turnwise.gateway.reply_grammar import read_ruled_reply
from turnwise.gateway.store import StoredCall
from turnwise.gateway.tree import Branch, CallTree, RecordedCall
from turnwise.render.renderer import Renderer
from turnwise.rollout.episode import build_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledChoice:
    """One sampled choice of a request."""

    branch: Branch
    completion: Completion
    extends: bool
    """True: `context_ids` are appended to the branch. False: they are its whole context."""
    context_ids: tuple[int, ...]
    prompt_tokens: int
    stop_strings: tuple[str, ...]


def record_choice(
    request: ChatRequest,
    conversation: Digest,
    sampled: SampledChoice,
    renderer: Renderer,
    *,
    episode: str,
    number: int,
    choice: int,
    response: Mapping[str, Any] | None,
) -> RecordedCall:
    """Return the call of a sampled choice. `conversation`: digest of the request's tools and messages.

    `response`: of `ResponseHistory.describe`.
    """
    completion, branch = sampled.completion, sampled.branch
    parsed = renderer.parse(completion.ids, completion.stop)
    text = read_ruled_reply(request.rule, completion, renderer)
    if text is None:
        text = read_reply(completion, parsed, request.tools, sampled.stop_strings)
    call = f"{address('call', episode, number, choice):016x}"
    message = reply_message(text.content, text.calls, call)
    reply_digest = digest_reply(message, text.thinking if request.shows_thinking else "")
    stored = StoredCall(
        id=call,
        episode=episode,
        number=number,
        choice=choice,
        branch=branch.number,
        extends=sampled.extends,
        conversation=digest(conversation, reply_digest),
        reply=reply_digest,
        request=request.digest,
        context_ids=sampled.context_ids,
        action_ids=completion.ids,
        logprobs=completion.logprobs,
        policy_versions=completion.policy_versions,
        details={
            **_details(sampled, text),
            "asked": dict(request.wishes),
            "response": response,
        },
    )
    reply = _reply(message, stored, completion)
    return RecordedCall(stored=stored, branch=branch, completion=completion, parsed=parsed, reply=reply)


def _details(sampled: SampledChoice, text: ReplyText) -> dict[str, Any]:
    """Return a choice as JSON values, for `restore_call`."""
    completion, branch = sampled.completion, sampled.branch
    return {
        "stop": completion.stop.value,
        "temperature": completion.temperature,
        "values": list(completion.values),
        "prompt_tokens": sampled.prompt_tokens,
        "content": text.content,
        "thinking": text.thinking,
        "stop_string": text.stop_string,
        "calls": [[call.name, call.arguments] for call in text.calls],
        "stream": branch.session.key.branch,
        "branch_conversation": branch.conversation.hex(),
        "grammar": None if completion.constraint is None else completion.constraint.grammar,
    }


def restore_call(stored: StoredCall, tree: CallTree, renderer: Renderer) -> RecordedCall:
    """Return the call as it was recorded."""
    details = stored.details
    completion = Completion(
        ids=stored.action_ids,
        logprobs=stored.logprobs,
        stop=Stop(details["stop"]),
        temperature=details["temperature"],
        policy_versions=stored.policy_versions,
        values=tuple(details["values"]),
        constraint=None if details.get("grammar") is None else Constraint(grammar=details["grammar"]),
    )
    calls = [ToolCall(name=name, arguments=arguments) for name, arguments in details["calls"]]
    message = reply_message(details["content"], calls, stored.id)
    return RecordedCall(
        stored=stored,
        branch=tree.restore(stored),
        completion=completion,
        parsed=renderer.parse(completion.ids, completion.stop),
        reply=_reply(message, stored, completion),
    )


def make_turn(call: RecordedCall, reward: float) -> Turn:
    """Return the call as a turn of the trajectory."""
    stored = call.stored
    info = {"call": stored.id, "branch": stored.branch, "asked": stored.details["asked"]}
    step = StepResult(reward=reward, info=info)
    return build_turn(stored.context_ids, stored.extends, call.completion, call.parsed, step)


def _reply(message: Message, stored: StoredCall, completion: Completion) -> ChatReply:
    ended: ReplyStop = "length" if completion.stop is Stop.LENGTH else "stop"
    return ChatReply(
        message=message,
        thinking=stored.details["thinking"],
        stop="tool_calls" if message.tool_calls else ended,
        stop_string=stored.details["stop_string"],
        prompt_tokens=stored.details["prompt_tokens"],
        sampled_tokens=len(completion.ids),
        policy_version=completion.policy_versions[-1] if completion.policy_versions else None,
        call=stored.id,
    )
