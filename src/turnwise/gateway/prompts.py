"""The ids that a request appends to what was recorded. Sampled ids are never encoded again."""

from collections.abc import Sequence

from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import Message, ToolSpec
from turnwise.core.trajectory import Stop
from turnwise.data.demonstrations import describe_tools
from turnwise.gateway.chat import ChatRequest, RequestError
from turnwise.gateway.conversation import write_calls
from turnwise.gateway.tree import CallTree, Position
from turnwise.gateway.workers import Workers
from turnwise.render.renderer import Renderer


async def render_prompt(
    renderer: Renderer, tree: CallTree, position: Position, request: ChatRequest, workers: Workers
) -> list[int]:
    """Return the ids that follow the parent's. Raises RequestError for messages that the template refuses."""
    try:
        return await workers.work_on(request, _render, renderer, tree, position, request.tools)
    except (UserError, EnvironmentFailure) as error:
        raise RequestError("messages", str(error)) from error


def _render(renderer: Renderer, tree: CallTree, position: Position, tools: Sequence[ToolSpec]) -> list[int]:
    """Encode the messages that the parent's ids do not cover.

    An assistant message that was sampled in another context has its sampled ids here too; without those of its thinking
    if the client dropped it. Others, such as one that the agent wrote or edited, are encoded.
    """
    first, *rest = _split_at_assistants(position.messages[position.shared :], opening=position.parent is None)
    if position.parent is not None:
        ids = renderer.extend(first, position.parent.completion.stop)
    else:
        ids = renderer.start(first, tools, describe_tools(tools))
    for assistant, *following in rest:
        answer, stop = _answer(renderer, tree, assistant)
        ids += [*answer, *renderer.extend(following, stop)]
    return ids


def _answer(renderer: Renderer, tree: CallTree, message: Message) -> tuple[Sequence[int], Stop]:
    """Return the ids of an assistant message and how they end."""
    if (sampled := tree.find_reply(message)) is not None:
        return sampled.completion.ids, sampled.completion.stop
    if (sampled := tree.find_answer(message)) is not None:
        stop = sampled.completion.stop
        if (ids := renderer.drop_thinking(sampled.completion.ids, stop)) is not None:
            return ids, stop
    return renderer.answer(write_calls(message)), Stop.EOS


def _split_at_assistants(messages: Sequence[Message], opening: bool) -> list[list[Message]]:
    """Split before each assistant message. The opening is not split before its first user or tool message."""
    groups: list[list[Message]] = [[]]
    for message in messages:
        opened = not opening or len(groups) > 1 or any(each.role in ("user", "tool") for each in groups[0])
        if message.role == "assistant" and opened:
            groups.append([])
        groups[-1].append(message)
    return groups
