"""The easy way to write an environment with tools: a question, tools, and what the answer is worth.

    class Capitals(ToolEnv):
        \"\"\"Name the capital.\"\"\"
        @classmethod
        def make_tools(cls, params): return [from_function(look_up)]
        def reset(self, rng): self.land = rng.choice(LANDS); return f"Capital of {self.land}?"
        def step(self, action): return won() if action == CAPITALS[self.land] else lost()

A turn with calls runs them and shows what they gave; a turn without is the answer, in `<answer>`, which `step` judges.
"""

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from turnwise.config.section import Positive
from turnwise.core.errors import UserError
from turnwise.core.messages import Message, ToolSpec, tool_schema
from turnwise.envs.answers import format_answer
from turnwise.envs.prompt import counted
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv
from turnwise.envs.tool_runner import ToolEnvRunner
from turnwise.tools.box import ToolBox, ToolHands, only_text
from turnwise.tools.formats import read_calls, write_call
from turnwise.tools.function import FunctionTool
from turnwise.tools.readiness import NeedsServer
from turnwise.tools.served import ServedTools, Serves
from turnwise.tools.signature import example_arguments, signature
from turnwise.tools.tool import Tool, ToolSource

PROGRAM = {"code": "print(6 * 7)"}
"""What a prompt shows as a call of Python."""
Style = Literal["hermes", "llama", "mistral", "python", "answer"]


class ToolEnv(TextEnv):
    max_turns = 6
    runner = ToolEnvRunner
    answers: bool = True
    """False: calls alone count, as where work is handed in, and the prompt says nothing of answers."""

    class Params(StrictParams):
        style: Style = "hermes"
        """How calls are written: hermes (also Qwen), llama, mistral, python (fenced blocks), answer (small models)."""
        max_tool_calls: Positive = 4
        """Calls of an episode, at most."""
        max_output: Positive = 2000
        """Characters of a tool's output that the agent sees; the middle is left out."""

    @classmethod
    @abstractmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        """The tools of all episodes of these parameters."""

    @classmethod
    def make_sources(cls, params: Any) -> Sequence[ToolSource]:
        """Servers and the like, whose tools are known only when an episode starts."""
        return ()

    @classmethod
    def check(cls, params: Any) -> None:
        """Every tool has a name of its own, can be called in the style of the parameters, and has what it works on."""
        sources = cls.make_sources(params)
        tools = ToolBox(cls.make_tools(params), sources).tools
        others = [name for name in tools if name != "python"] + ["those of a server"] * bool(sources)
        if params.style == "python" and others:
            raise UserError(
                f'env.params.style "python" calls the tool python and no other, so not {", ".join(others)}: '
                "leave them out, or choose hermes, llama, mistral or answer"
            )
        for name, each in tools.items():
            if isinstance(each, FunctionTool) and each.takes_state and cls.tool_state is ToolEnv.tool_state:
                raise UserError(
                    f"the tool {name} takes a state, and {cls.__name__} keeps none for its tools: "
                    "leave that parameter out, or write a ToolEnv whose tool_state gives it"
                )

    @classmethod
    def notes(cls, params: Any) -> list[str]:
        """What is to be known of these parameters, a line each: told when a run starts."""
        return []

    @classmethod
    def servers(cls, params: Any) -> list[NeedsServer]:
        """Who must answer before an episode can be played: asked when a run starts."""
        tools = cls.make_tools(params)
        asked: list[NeedsServer] = [tool for tool in tools if isinstance(tool, NeedsServer)]
        serving = [source for source in cls.make_sources(params) if isinstance(source, Serves)]
        return [*asked, ServedTools(known=[tool.spec.name for tool in tools], sources=serving)] if serving else asked

    async def judge(self, action: str, said: Sequence[Message], hands: ToolHands) -> Outcome:
        """What an answer is worth: `step`, unless judging it waits for something. `said`: the episode up to here."""
        return self.step(action)

    def prompt(self, specs: Sequence[ToolSpec]) -> str:
        """The system message: rules, limits, how to call and how to answer."""
        limits = f"At most {counted(self.max_turns, 'turn')} and {counted(self.params.max_tool_calls, 'call')} in all."
        answering = f"Answer: {format_answer(['answer'])}. You may think first: <think>thoughts</think>."
        lines = (self.rules(), limits, self.calling_text(specs), answering if self.answers else "")
        return "\n".join(line for line in lines if line)

    def calling_text(self, specs: Sequence[ToolSpec]) -> str:
        """How tools are called, where the chat template does not tell of them."""
        if self.params.style == "python":
            return "Code in a block is run, and you see what it prints:\n" + write_call("python", PROGRAM, "python")
        if self.params.style != "answer":
            return ""
        lines = [_unmarked(f"- {signature(spec)}: {spec.description}") for spec in specs]
        forms = [_example(specs[0]), *(_example(spec) for spec in specs[1:] if only_text(spec) is None)]
        return "\n".join(["Tools:", *lines, f"Call: {' or '.join(forms[:2])}."])

    def tools_in_words(self, specs: Sequence[ToolSpec]) -> str:
        """The tools and the form of a call, for models whose chat template tells of none."""
        shown = [json.dumps(tool_schema(spec)["function"], ensure_ascii=False) for spec in specs]
        example = self.call(specs[0].name, **json.loads(_unmarked(json.dumps(example_arguments(specs[0])))))
        return "\n".join(["Tools:", *map(_unmarked, shown), f"A call: {example}"])

    def tool_state(self) -> Any:
        """What the tools of this episode are given to work on, after `reset`."""
        return None

    def call(self, tool: str, /, **arguments: Any) -> str:
        """A call as this environment's agents write it."""
        return write_call(tool, arguments, self.params.style)

    def reply(self, actions: Sequence[str], think: str | None = None) -> str:
        """`actions`: one call as `call` writes it, or an answer."""
        if read_calls(actions[0], self.params.style).calls:
            return actions[0] if think is None else f"<think>{think}</think>{actions[0]}"
        return format_answer(actions, think)


def _unmarked(text: str) -> str:
    """A server's words stand in the prompt here: marks such as <think> must not mean there what they say."""
    return text.replace("<", "‹").replace(">", "›")


def _example(spec: ToolSpec) -> str:
    alone = only_text(spec)
    given = json.dumps(example_arguments(spec), ensure_ascii=False) if alone is None else alone.upper()
    return f"<call>{_unmarked(f'{spec.name} {given}')}</call>"
