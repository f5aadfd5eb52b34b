"""Demonstrations: conversations to imitate, as samples.

Their answers were written by a solver or a person, not sampled. This is the only place where trained text is encoded;
episodes of a run keep the ids that were sampled (`samples.build_samples`).
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import torch

from turnwise.core.images import find_images
from turnwise.core.messages import Exchange, Message, ToolCall, ToolSpec, text_parts, tool_schema
from turnwise.core.random_streams import address
from turnwise.core.samples import Sample
from turnwise.core.task import Task
from turnwise.core.trajectory import Stop, Trajectory, Turn
from turnwise.data.episodes import WrittenEpisode
from turnwise.render.renderer import Renderer
from turnwise.tools.call_formats import format_call

HOW_TO_CALL = 'Call a tool: <tool_call>{"name": NAME, "arguments": {...}}</tool_call>'
"""The format that `encode_answer` writes and the gateway reads."""


def build_demonstration(number: int, exchanges: Sequence[Exchange], renderer: Renderer) -> Sample:
    """Encode a conversation as one sample; the mask is 1 on the answers and their end tokens."""
    ids: list[int] = []
    turn_ids: list[int] = []
    for turn, exchange in enumerate(exchanges):
        context = _encode_context(exchange, renderer, first=turn == 0)
        answer = encode_answer(exchange, renderer)
        ids += [*context, *answer]
        turn_ids += [-1] * len(context) + [turn if exchange.trained else -1] * len(answer)
    turns = torch.tensor(turn_ids)
    return Sample(
        trajectory=number,
        ids=torch.tensor(ids),
        mask=turns >= 0,
        turn_ids=turns,
        sampler_logprobs=torch.zeros(len(ids)),
        temperatures=torch.ones(len(ids)),
    )


def build_turns(exchanges: Sequence[Exchange], renderer: Renderer) -> list[Turn]:
    """Encode a conversation as turns of one context, with log-probabilities of 0: they were not sampled.

    An answer that is only context becomes part of the next turn's context.
    """
    turns: list[Turn] = []
    context: list[int] = []
    for number, exchange in enumerate(exchanges):
        context += _encode_context(exchange, renderer, first=number == 0)
        answer = encode_answer(exchange, renderer)
        if not exchange.trained:
            context += answer
            continue
        turns.append(
            Turn(
                context_ids=tuple(context),
                extends=bool(turns),
                action_ids=tuple(answer),
                action_logprobs=(0.0,) * len(answer),
                temperature=1.0,
                spans=renderer.parse(answer, Stop.EOS).spans,
                message=Message(role="assistant", parts=text_parts(exchange.answer), tool_calls=exchange.calls),
                stop=Stop.EOS,
                reward=0.0,
                images=find_images(context),
            )
        )
        context = []
    return turns


def build_episode(episode: WrittenEpisode, env: str, renderer: Renderer) -> Trajectory:
    """Encode an episode. Those with the same opening are one task, so their outcomes can be compared."""
    rewards = episode.turn_rewards
    turns = build_turns(episode.exchanges, renderer)
    scored = rewards if rewards is not None else (0.0,) * len(turns)
    turns = [replace(turn, reward=reward) for turn, reward in zip(turns, scored, strict=True)]
    return Trajectory(
        task=Task(env=env, seed=address("opening", list(turns[0].context_ids))),
        member=0,
        attempt=0,
        turns=tuple(turns),
        status=episode.status,
        turn_rewards=scored,
    )


def _encode_context(exchange: Exchange, renderer: Renderer, *, first: bool) -> list[int]:
    if not first:
        return renderer.extend(exchange.messages, Stop.EOS)
    in_words = exchange.tools_in_words or describe_tools(exchange.tools)
    return renderer.start(exchange.messages, exchange.tools, in_words)


def encode_answer(exchange: Exchange, renderer: Renderer) -> list[int]:
    """Encode an answer. Its calls are written as the chat template writes them, or else in the Hermes format."""
    if not exchange.calls:
        return renderer.answer(exchange.answer)
    ids = renderer.answer_with_calls(exchange.answer, exchange.calls)
    return renderer.answer(exchange.answer + format_calls(exchange.calls, "hermes")) if ids is None else ids


def format_calls(calls: Sequence[ToolCall], style: str) -> str:
    """Write calls as text, in a format that `parse_calls` parses."""
    return "".join(format_call(call.name, json.loads(call.arguments), style) for call in calls)


def describe_tools(tools: Sequence[ToolSpec]) -> str:
    """Describe tools, and how to call them, for models whose chat template has none."""
    lines = [json.dumps(tool_schema(spec)["function"], ensure_ascii=False) for spec in tools]
    return "\n".join(["Tools:", *lines, HOW_TO_CALL]) if tools else ""
