"""Three and more rounds of calls of uneven length, in each call format: what tools said has mask 0, what was sampled 1.

The masks are compared with what a session was given and what came out of it, call by call: nothing here looks at turns.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig

from episodes_for_tests import key_of, limits
from hostile_for_tests import JOINED, STYLES, WORDS, renderer_of, sampled_words, turn_end
from turnwise.core.messages import Message, assistant
from turnwise.core.protocols import Completion, Observation, Policy, Sampling, Session, StepResult
from turnwise.core.task import Task
from turnwise.core.trajectory import Trajectory
from turnwise.data.samples import build_samples
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import Outcome, lost
from turnwise.envs.tool_env import ToolEnv, ToolEnvRunner
from turnwise.models.attention.interface import ATTENTION
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import FullContext
from turnwise.rollout.episode import run_episode
from turnwise.tools.call_formats import format_call
from turnwise.tools.function import from_function
from turnwise.tools.tool import Tool

OUTPUTS: list[str] = []
"""What the calls of an episode give, in their order."""


def python(code: str) -> str:
    """Gives what it is to give."""
    return OUTPUTS[int(code)]


class Rounds(ToolEnv):
    """Call, then answer."""

    max_turns = 20

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        return [from_function(python)]

    def reset(self, rng: random.Random) -> str:
        return "Well?"

    def step(self, action: str) -> Outcome:
        return lost("Done.")


KIND = EnvSpec(name="rounds", id="", cls=Rounds)


@dataclass
class Witness:
    """Passes on to a session. Keeps what it was given and what it said, and gives each token a number of its own."""

    session: Session
    given: list[list[int]] = field(default_factory=list)
    said: list[list[int]] = field(default_factory=list)
    count: int = 0

    @property
    def sampling_s(self) -> float:
        return self.session.sampling_s

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        assert restart == (not self.given)
        completion = await self.session.generate(ids, sampling, restart)
        self.given.append(list(ids))
        self.said.append(list(completion.ids))
        numbers = range(self.count + 1, self.count + 1 + len(completion.ids))
        self.count += len(completion.ids)
        return replace(completion, logprobs=tuple(-number / 8 for number in numbers))


@dataclass
class Heard:
    """Passes on to an environment, with `forced` in the place of what the agent said, where there is any."""

    env: ToolEnvRunner
    forced: Sequence[str] = ()
    results: list[StepResult] = field(default_factory=list)

    async def start(self) -> Observation:
        return await self.env.start()

    async def step(self, action: Message) -> StepResult:
        said = assistant(self.forced[len(self.results)]) if self.forced else action
        self.results.append(await self.env.step(said))
        return self.results[-1]

    async def close(self) -> None:
        await self.env.close()


def episode(style: str, policy: Policy, bounds: int, forced: Sequence[str] = ()) -> tuple[Trajectory, Witness, Heard]:
    params = KIND.check_params({"style": style, "max_tool_calls": 100, "max_output": 400})
    task = Task(env="rounds", seed=seed_for("train", 0), params=params)

    async def run() -> tuple[Trajectory, Witness, Heard]:
        runner = KIND.make(task)
        assert isinstance(runner, ToolEnvRunner)
        env, context = Heard(runner, forced), FullContext(renderer_of(STYLES[style], "markup"))
        async with policy.open(key_of(task)) as session:
            witness = Witness(session)
            most = limits(max_new_tokens=bounds, max_tokens=100_000)
            trajectory = await run_episode(key_of(task), env, witness, context, most)
        await env.close()
        return trajectory, witness, env

    return asyncio.run(run())


def check_masks(trajectory: Trajectory, witness: Witness) -> None:
    """The sample is what the session saw, token by token, and its mask says who wrote each."""
    (sample,) = build_samples([trajectory])
    ids, mask, turns = list[int](), list[bool](), list[int]()
    for number, (given_ids, said) in enumerate(zip(witness.given, witness.said, strict=True)):
        ids += given_ids + said
        mask += [False] * len(given_ids) + [True] * len(said)
        turns += [-1] * len(given_ids) + [number] * len(said)
    assert sample.ids.tolist() == ids
    assert sample.mask.tolist() == mask
    assert sample.turn_ids.tolist() == turns
    numbers = [-number / 8 for number in range(1, witness.count + 1)]
    assert sample.sampler_logprobs[sample.mask].tolist() == numbers
    assert not sample.sampler_logprobs[~sample.mask].any()


TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", "x" * 3000, JOINED, "0", "\n\n", '{"name": "python"}', "```python\n1\n```"]),
    st.lists(st.sampled_from(WORDS), max_size=4).map("".join),
)


Spelled = Literal["bytes", "pieces", "words"]
"""Byte by byte, as no tokenizer would; as the tokenizer cuts plain text; the words of a format as its own tokens."""


@dataclass(frozen=True)
class Turn:
    outputs: list[str]
    """Outputs of the calls in this turn."""
    thought: str
    spelled: Spelled
    ends: bool
    """With the token that ends turns; else it was cut at the length's limit."""


TURNS = st.lists(
    st.builds(
        Turn,
        outputs=st.lists(TEXTS, min_size=1, max_size=3),
        thought=st.text(alphabet="ab \n", max_size=30),
        spelled=st.sampled_from(get_args(Spelled)),
        ends=st.booleans(),
    ),
    min_size=3,
    max_size=6,
)


FORMS = (*STYLES, "mistral newer")
"""The styles, and the other way of writing that one of them reads."""


def calls_text(form: str, numbers: Sequence[int]) -> str:
    """Several calls in one answer."""
    if form == "mistral newer":
        return "".join(f'[TOOL_CALLS]python[ARGS]{{"code": "{number}"}}' for number in numbers)
    written = [format_call("python", {"code": str(number)}, form) for number in numbers]
    if form == "mistral":
        return f"[TOOL_CALLS][{', '.join(each.removeprefix('[TOOL_CALLS][').removesuffix(']') for each in written)}]"
    return {"llama": "; ", "python": "\nthen\n"}.get(form, " ").join(written)


def written_turns(form: str, turns: Sequence[Turn]) -> list[str]:
    OUTPUTS[:] = [output for turn in turns for output in turn.outputs]
    texts, first = list[str](), 0
    for turn in turns:
        numbers = range(first, first + len(turn.outputs))
        texts.append(f"<think>{turn.thought}</think>{calls_text(form, numbers)}")
        first += len(turn.outputs)
    return [*texts, "<answer>so</answer>"]


def sampled(renderer: Renderer, text: str, spelled: Spelled) -> list[int]:
    match spelled:
        case "bytes":
            return list(text.encode())
        case "pieces":
            return renderer.answer(text)[:-1]
    return sampled_words(renderer, text)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15)
@given(turns=TURNS)
def test_mask_is_zero_on_observations_and_one_on_sampled_ids(form: str, turns: list[Turn]) -> None:
    style = form.split()[0]
    renderer, texts = renderer_of(STYLES[style], "markup"), written_turns(form, turns)
    ways: list[tuple[Spelled, bool]] = [*((turn.spelled, turn.ends) for turn in turns), ("bytes", True)]
    says = [
        [*sampled(renderer, text, spelled), *[turn_end(renderer)] * ends]
        for text, (spelled, ends) in zip(texts, ways, strict=True)
    ]
    policy = ScriptedEngine(lambda key, turn, ids: says[turn], list(renderer.stop_ids))
    trajectory, witness, heard = episode(style, policy, bounds=5000)
    assert witness.said == says
    check_masks(trajectory, witness)
    tool_outputs = [[m.content for m in result.messages if m.role == "tool"] for result in heard.results[:-1]]
    assert [len(each) for each in tool_outputs] == [len(turn.outputs) for turn in turns], "every call ran"
    for outputs, given_ids in zip(tool_outputs, witness.given[1:], strict=True):
        shown = renderer.decode(given_ids)
        for output in outputs:
            assert (
                output.encode(errors="replace").decode().strip() in shown
                or json.dumps(output)[1:-1] in shown
                or (json.dumps(output, ensure_ascii=False)[1:-1] in shown)
            )


@cache
def one_layer_model() -> Any:
    config = LlamaConfig(
        vocab_size=1700,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=100_000,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=2)
@given(turns=TURNS)
def test_mask_holds_for_tokens_of_the_native_engine(form: str, turns: list[Turn]) -> None:
    """A model that knows nothing says anything, of any length; its environment hears calls."""
    style = form.split()[0]
    stop_ids = [*range(200), turn_end(renderer_of(STYLES[style], "markup"))]  # so many that some turns end early
    engine = NativeEngine(one_layer_model(), slots=1, stop_ids=stop_ids, decode=str)
    trajectory, witness, heard = episode(style, engine, 12, forced=written_turns(form, turns))
    assert len(witness.said) == len(turns) + 1 and all(witness.said)
    assert sum(len(result.info.get("calls", ())) for result in heard.results) == len(OUTPUTS)
    check_masks(trajectory, witness)
