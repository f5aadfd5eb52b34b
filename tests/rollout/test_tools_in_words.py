"""Tools in the system message, for chat templates without tools; demonstrations show what episodes show."""

import asyncio
from functools import partial

import pytest

from hostile_for_tests import renderer_of
from turnwise.core.task import Task
from turnwise.data.demonstrations import build_demonstration
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import FullContext
from turnwise.training.sft import play_demonstration, solver_script


def tiny() -> Renderer:
    return Renderer(tiny_tokenizer())


def opening(renderer: Renderer, style: str) -> tuple[str, list[int], list[int]]:
    """The first context of an episode as text and ids, and that of its demonstration."""
    kind = load_spec("lookup")
    task = Task(env="lookup", params=kind.check_params({"style": style}), seed=seed_for("train", 0))

    async def started() -> list[int]:
        env = kind.make(task, 0, 0)
        try:
            return list(FullContext(renderer).start(await env.start()).ids)
        finally:
            await env.close()

    shown = asyncio.run(started())
    exchanges, _ = asyncio.run(play_demonstration(partial(kind.make, task), partial(solver_script, False), attempts=3))
    sample = build_demonstration(0, exchanges, renderer)
    return renderer.decode(shown), shown, sample.ids[: len(shown)].tolist()


@pytest.mark.parametrize(
    ("style", "form"),
    [
        ("hermes", '<tool_call>{"name": "room", "arguments": {"name": "..."}}</tool_call>'),
        ("llama", '{"name": "room", "parameters": {"name": "..."}}'),
        ("mistral", '[TOOL_CALLS][{"name": "room", "arguments": {"name": "..."}}]'),
    ],
)
def test_tools_are_described_in_text_if_the_template_ignores_them(style: str, form: str) -> None:
    text, shown, demonstrated = opening(tiny(), style)
    assert f"A call: {form}<|end|><|user|>" in text and text.count("The room of a person.") == 1
    assert ("<tool_call>" in text) == (style == "hermes")
    assert shown == demonstrated


def test_tools_are_left_to_a_template_that_renders_them() -> None:
    renderer = renderer_of("chatml")
    assert renderer.renders_tools and not tiny().renders_tools
    text, shown, demonstrated = opening(renderer, "hermes")
    assert "The room of a person." in text and "A call:" not in text
    assert shown == demonstrated
