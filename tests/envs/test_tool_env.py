"""Environments with tools: calls are run, their results shown, answers judged, limits kept, observations masked."""

import asyncio
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runs_for_tests import environments_of
from turnwise.cli.main import main
from turnwise.config.load import build
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.messages import Exchange, Message, assistant, text_parts, user
from turnwise.core.protocols import Observation, StepResult
from turnwise.core.task import Split, Task
from turnwise.data.demonstrations import build_demonstration
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import Outcome, lost, won
from turnwise.envs.tool_env import NO_CALLS_LEFT, ToolEnv, ToolEnvRunner
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.tools.call_formats import parse_calls
from turnwise.tools.function import from_function, tool
from turnwise.tools.tool import ToolResult

STYLES = ("hermes", "llama", "mistral", "python", "answer")


def python(code: str) -> str:
    """Stands in for an interpreter: says the code back."""
    return f"ran {code.strip()}"


def judged(good: bool) -> ToolResult:
    """Worth a quarter if good."""
    return ToolResult(text="judged", reward=0.25 * good)


@tool(retries=0)
def broken() -> str:
    """A tool whose server does not answer."""
    raise ConnectionError("gone")


class Asking(ToolEnv):
    """Find it out."""

    max_turns = 5

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Any]:
        return [python, judged, from_function(broken)]

    def reset(self, rng: random.Random) -> str:
        return "Well?"

    def step(self, action: str) -> Outcome:
        return won("Right.") if action == "42" else lost("Wrong.")


KIND = EnvSpec(name="asking", id="", cls=Asking)


def make(**params: Any) -> ToolEnvRunner:
    runner = KIND.make(Task(env="asking", seed=seed_for("train", 0), params=KIND.check_params(params)))
    assert isinstance(runner, ToolEnvRunner)
    return runner


def play(answers: Sequence[str], **params: Any) -> tuple[Observation, list[StepResult]]:
    async def run() -> tuple[Observation, list[StepResult]]:
        env = make(**params)
        opening = await env.start()
        results = [await env.step(assistant(answer)) for answer in answers]
        await env.close()
        return opening, results

    return asyncio.run(run())


def written(style: str, code: str) -> str:
    return make(style=style).tool_env.call("python", code=code)


@pytest.mark.parametrize("style", STYLES)
def test_tool_env_runs_calls_and_scores_the_answer(style: str) -> None:
    opening, results = play([written(style, "6*7"), "So <answer>42</answer>"], style=style)
    assert [(each.role, each.content) for each in results[0].messages] == [("tool", "ran 6*7")]
    assert not results[0].over and results[1].success and results[1].reward == 1.0
    assert [spec.name for spec in opening.tools] == (
        ["python", "judged", "broken"] if style in ("hermes", "llama", "mistral") else []
    )
    assert ("python(code)" in opening.messages[0].content) == (style == "answer")


def test_tool_env_penalises_format_errors() -> None:
    _, (result,) = play(["<tool_call>{bad}</tool_call>"])
    assert result.invalid and not result.over and "not valid JSON" in result.messages[0].content


def test_tool_env_skips_and_reports_excess_calls() -> None:
    call = written("hermes", "1")
    _, results = play([call * 2, call * 2, call], max_tool_calls=3)
    shown = [[message.content for message in each.messages] for each in results]
    assert shown == [["ran 1", "ran 1"], ["ran 1", NO_CALLS_LEFT], [NO_CALLS_LEFT]]
    assert [len(each.info["calls"]) for each in results] == [2, 1, 0]


def test_tool_env_counts_turns_with_calls() -> None:
    _, results = play([written("hermes", "1")] * 3, max_turns=3)
    assert [each.truncated for each in results] == [False, False, True]


def test_tool_reward_is_the_turn_reward() -> None:
    good = '<tool_call>{"name": "judged", "arguments": {"good": true}}</tool_call>'
    _, results = play([good * 2, "<answer>42</answer>"])
    assert [each.reward for each in results] == [0.5, 1.0], "the outcome counts once"


def test_tool_output_is_truncated_in_the_middle() -> None:
    _, (result,) = play([written("hermes", "a" * 50 + "b" * 5000 + "c" * 50)], max_output=100)
    text = result.messages[0].content
    assert text.startswith("ran a") and text.endswith("c" * 50) and len(text) < 160 and "characters cut" in text


def test_tool_failure_is_not_an_observation() -> None:
    with pytest.raises(InfrastructureFailure, match="gone"):
        play(['<tool_call>{"name": "broken", "arguments": {}}</tool_call>'])


@settings(deadline=None)
@given(
    outputs=st.lists(st.text(max_size=40), min_size=3, max_size=6),
    style=st.sampled_from(STYLES),
    thoughts=st.lists(st.text(alphabet="abc <>", max_size=12), min_size=7, max_size=7),
)
def test_loss_mask_covers_answers_and_no_observation(outputs: list[str], style: str, thoughts: list[str]) -> None:
    renderer = Renderer(tiny_tokenizer())
    answers = [thoughts[number] + written(style, str(number)) for number in range(len(outputs))] + [
        "<answer>42</answer>"
    ]
    heard: list[tuple[Message, ...]] = [(user("Well?"),)]
    heard += [(Message(role="tool", parts=text_parts(text)),) for text in outputs]
    exchanges = [Exchange(messages=messages, answer=answer) for messages, answer in zip(heard, answers, strict=True)]
    sample = build_demonstration(0, exchanges, renderer)
    runs, counts = torch.unique_consecutive(sample.mask, return_counts=True)
    assert runs.tolist() == [bool(number % 2) for number in range(2 * len(answers))]
    spoken = [
        renderer.decode(part.tolist())
        for part, is_said in zip(sample.ids.split(counts.tolist()), runs, strict=True)
        if is_said
    ]
    assert [each.startswith(answer) for each, answer in zip(spoken, answers, strict=True)] == [True] * len(answers)


@pytest.mark.parametrize("style", ["answer", "hermes"])
def test_lookup_solver_calls_the_tool(style: str) -> None:
    kind, rooms = load_spec("lookup"), set[str]()

    async def solve(index: int) -> bool:
        task = Task(env="lookup", seed=seed_for("train", index), params=kind.check_params({"style": style}))
        env = kind.make(task)
        await env.start()
        for _ in range(2):
            (action,) = env.env.solve() or []
            result = await env.step(assistant(env.env.reply([action])))
        rooms.add(action)
        await env.close()
        return result.success

    assert all(asyncio.run(solve(index)) for index in range(30))
    assert len(rooms) > 5


TOOL_FILE = '''
from turnwise.run.environment_mix import build_environment_mix
from turnwise.tools.tool import ToolError
WEATHER = {"Rome": "sunny", "Oslo": "snow"}

def weather(city: str) -> str:
    """The weather in a city."""
    if city not in WEATHER:
        raise ToolError(f"no city {city}")
    return WEATHER[city]

class Shop:
    """A shop."""
    def buy(self, fruit: str) -> str:
        """Buys."""
        return fruit
    __call__ = buy

def owned(name: str, state: Shop) -> str:
    """What a shop has."""
    return name

shop = Shop()

def score(answer, row):
    return answer == row["gold"]
'''


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "own.py").write_text(TOOL_FILE)
    rows = [{"question": f"Weather in Rome on day {day}?", "gold": "sunny"} for day in range(40)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = str(tmp_path / "own.py")
    return {"tasks": str(tmp_path / "tasks.jsonl"), "tools": [f"{file}:weather"], "reward": f"{file}:score"}


def questions(own: dict[str, Any], split: Split) -> set[str]:
    kind = load_spec("tools")

    async def ask(index: int) -> str:
        env = kind.make(Task(env="tools", seed=seed_for(split, index), split=split, params=kind.check_params(own)))
        opening = await env.start()
        call = await env.step(assistant('<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'))
        assert call.messages[0].content == "sunny" and [spec.name for spec in opening.tools] == ["weather"]
        end = await env.step(assistant("<answer>sunny</answer>"))
        assert end.success and end.reward == 1.0
        await env.close()
        return opening.messages[-1].content

    return {asyncio.run(ask(index)) for index in range(20)}


def test_tools_env_runs_tasks_from_a_file(own: dict[str, Any]) -> None:
    splits: tuple[Split, ...] = ("train", "validation", "test")
    train, validation, test = (questions(own, split) for split in splits)
    assert train and validation and test
    assert not (train & validation or train & test or validation & test), "no question is in two splits"


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("sunny", "sunny"),
        ("<think>rain?</think> sunny ", "sunny"),
        ("It is <answer>sunny</answer>.", "sunny"),
        ('<tool_call>{"name": "weather"}</tool_call>', '<tool_call>{"name": "weather"}</tool_call>'),
        ("", ""),
    ],
)
def test_tools_env_without_tools_scores_any_reply_to_the_prompt(own: dict[str, Any], reply: str, answer: str) -> None:
    kind = load_spec("tools")
    del own["tools"]

    async def play() -> tuple[Observation, StepResult]:
        env = kind.make(Task(env="tools", seed=seed_for("train", 0), params=kind.check_params(own)))
        return await env.start(), await env.step(assistant(reply))

    opening, end = asyncio.run(play())
    assert [message.role for message in opening.messages] == ["user"] and not opening.tools
    assert end.terminated and not end.invalid and end.info["actions"] == [answer]
    assert end.success is (answer == "sunny") and end.reward == float(end.success)


def test_tools_env_accepts_short_settings(own: dict[str, Any]) -> None:
    config = build({"env": {"kind": "tools", **own, "params": {"max_tool_calls": 2}}})
    assert config.env.params == {**own, "max_tool_calls": 2}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tasks": "missing.jsonl"}, "missing.jsonl does not exist"),
        ({"tools": ["own.txt:weather"]}, "FILE.py:function"),
        ({"reward": "nowhere.py:score"}, "nowhere.py does not exist"),
        ({"tools": [3]}, r"env.params.tools = \[3\]: must be a list of at least one tool"),
        ({"tools": "python"}, r'env.params.tools = .python.: must be a list: tools = \["python"\]'),
        ({"tools": {"use": "python"}}, r"env.params.tools = {'use': 'python'}: must be a list: tools = \[{ ... }\]"),
        ({"reward": {"use": "f1"}}, r"env.params.reward = {'use': 'f1'}: must be a list: reward = \[{ ... }\]"),
        ({"reward": [3]}, r"env.params.reward = \[3\]: must be a list of at least one reward"),
        ({"tools": [{"use": "serch"}]}, "search"),
        (
            {"tools": [{"use": "python", "timeout": 3}]},
            'the tool python has no option "timeout": did you mean "timeout_s"',
        ),
        ({"tools": [{"use": "python", "timeout_s": "long"}]}, "the tool python, timeout_s: input should be"),
        ({"tools": [{"use": "sql", "database": "nowhere.db"}]}, "nowhere.db"),
        ({"tools": [{"mcp": "no-such-command-anywhere"}]}, "no-such-command-anywhere"),
        ({"reward": [{"use": "exact"}]}, "exact_match"),
        ({"reward": [{"use": "exact_match"}, {"use": "exact_match"}]}, "name"),
        (
            {"reward": [{"use": "exact_match", "against": "nowhere"}]},
            'column "nowhere", which is missing in row 1: there are gold, question',
        ),
    ],
)
def test_tools_env_rejects_invalid_settings(own: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        environments_of(build({"env": {"kind": "tools", **own, **change}}))
    assert "\n" not in str(error.value)


UNFIT: dict[str, tuple[list[Any], str]] = {
    "a class": (["Shop"], "Shop is a class, not a function: write a function. For state within an episode, take a"),
    "an object": (["shop"], "Shop is an object, not a function: write a function"),
    "a method": (["Shop.buy"], 'own.py:Shop.buy": methods cannot be used: move'),
    "a mistyped function": (["Shap"], 'no function "Shap" in .*own.py: did you mean "shop"'),
    "a state that nobody keeps": (["owned"], "The tool owned takes a state, but Tools has none for its tools: remove"),
    "two of one name": (["weather", "weather"], 'Two tools are called "weather": rename one'),
    "two tables of one name": ([{"use": "python"}, "python"], 'Two tools are called "python": rename one'),
}


@pytest.mark.parametrize("case", UNFIT)
def test_dry_run_rejects_invalid_tools(
    own: dict[str, Any], case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names, said = UNFIT[case]
    given = [f"{tmp_path}/own.py:{each}" if isinstance(each, str) and each != "python" else each for each in names]
    typed = [*("--env.params.tasks", own["tasks"]), *("--env.params.reward", own["reward"])]
    for command in (["train", "--dry-run"], ["play"]):
        assert main([command[0], "tools", *command[1:], *typed, "--env.params.tools", json.dumps(given)]) == 2
        printed = capsys.readouterr().err
        assert re.search(said, printed) and printed.count("\n") == 1


def test_tool_error_names_its_file(own: dict[str, Any], tmp_path: Path) -> None:
    marked = TOOL_FILE.replace("def weather", "from turnwise.tools.function import tool\n@tool(timeout=3)\ndef weather")
    (tmp_path / "marked.py").write_text(marked)
    with pytest.raises(UserError) as error:
        environments_of(build({"env": {"kind": "tools", **own, "tools": [f"{tmp_path}/marked.py:weather"]}}))
    said = '@tool of weather has no option "timeout": did you mean "timeout_s"?'
    assert str(error.value) == f"{tmp_path}/marked.py: {said}"


@pytest.mark.parametrize("others", [["weather"], ["weather", "python"], ["python", {"mcp": "http://127.0.0.1:9/mcp"}]])
def test_python_style_calls_only_the_python_tool(own: dict[str, Any], others: list[Any]) -> None:
    given = [own["tools"][0] if each == "weather" else each for each in others]
    unreached = "weather" if "weather" in others else "a server's tools"
    with pytest.raises(UserError, match=f"can call only the tool python, not {unreached}: remove them"):
        environments_of(build({"env": {"kind": "tools", **own, "tools": given, "style": "python"}}))
    with pytest.raises(UserError, match="python, not room"):
        environments_of(build({"env": {"kind": "lookup", "params": {"style": "python"}}}))


def test_tools_env_requires_tasks_and_reward() -> None:
    with pytest.raises(UserError, match=r"env\.params\.tasks is missing: tools needs tasks, reward"):
        load_spec("tools").check_params({})


def test_lookup_rewards_the_right_call_once() -> None:
    kind = load_spec("lookup")

    async def rewards() -> list[float]:
        params = kind.check_params({"call_reward": 0.5, "max_turns": 4})
        env = kind.make(Task(env="lookup", seed=seed_for("train", 1), params=params))
        await env.start()
        asked = vars(env.env)["person"]
        other = next(name for name in vars(env.env)["rooms"] if name != asked)
        said = [f"<call>room {name}</call>" for name in (other, asked, asked)]
        found = [(await env.step(assistant(text))).reward for text in said]
        await env.close()
        return found

    assert asyncio.run(rewards()) == [0.0, 0.5, 0.0]


@pytest.mark.parametrize("style", STYLES)
def test_tool_prompt_states_the_limits(style: str) -> None:
    for calls, turns in ((2, 3), (7, 5)):
        opening, _ = play([], style=style, max_tool_calls=calls, max_turns=turns)
        prompt = opening.messages[0].content
        assert f"At most {turns} turns and {calls} calls in all." in prompt
        assert "<answer>" in prompt


def test_prompt_without_answers_mentions_none() -> None:
    kind = load_spec("code_tests")

    async def prompt() -> str:
        task = Task(env="code_tests", seed=seed_for("train", 0), params=kind.check_params({"max_tool_calls": 2}))
        env = kind.make(task)
        opening = (await env.start()).messages[0].content
        await env.close()
        return opening

    said = asyncio.run(prompt())
    assert "<answer>" not in said and "2 calls in all" in said


def test_turn_with_calls_records_its_state() -> None:
    kind = load_spec("math_code")

    async def states() -> list[object]:
        env = kind.make(Task(env="math_code", seed=seed_for("train", 0), params=kind.check_params({})))
        question = (await env.start()).messages[-1].content
        results = [await env.step(assistant(text)) for text in ("```python\nprint(1)\n```", "<answer>x</answer>")]
        await env.close()
        return [question, *(result.info["state"] for result in results)]

    assert len(set(asyncio.run(states()))) == 1


def test_sandbox_is_a_tool_by_name(own: dict[str, Any]) -> None:
    kind = load_spec("tools")

    async def ask() -> list[str]:
        params = kind.check_params({**own, "tools": ["python"], "style": "python"})
        kind.check_resources(params)
        env = kind.make(Task(env="tools", seed=seed_for("train", 0), params=params))
        await env.start()
        said = [await env.step(assistant(f"```python\n{code}\n```")) for code in ("x = 6 * 7", "print(x)")]
        await env.close()
        return [each.messages[0].content for each in said]

    assert asyncio.run(ask())[1] == "42"


HALF = """
def score(answer, row):
    return 0.5 if answer == row["gold"] else 0.25
"""


@pytest.mark.parametrize(("success_at", "right"), [(0.5, True), (0.51, False), (0.2, True)])
def test_success_at_decides_which_answers_succeed(
    own: dict[str, Any], tmp_path: Path, success_at: float, right: bool
) -> None:
    (tmp_path / "half.py").write_text(HALF)
    given = own | {"reward": f"{tmp_path}/half.py:score", "success_at": success_at}
    kind = load_spec("tools")

    async def end() -> StepResult:
        env = kind.make(Task(env="tools", seed=seed_for("train", 0), params=kind.check_params(given)))
        await env.start()
        result = await env.step(assistant("<answer>sunny</answer>"))
        await env.close()
        return result

    result = asyncio.run(end())
    assert result.success is right and result.reward == 0.5 and result.info["rewards"] == {"score": 0.5}


def test_task_rows_error_names_the_line_of_an_unknown_split(own: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"question": "a?", "split": "train"}, {"question": "b?", "split": "val"}]
    (tmp_path / "split.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match=r"line 2: unknown split 'val': use train, validation, test"):
        environments_of(build({"env": {"kind": "tools", **own, "tasks": str(tmp_path / "split.jsonl")}}))


def book(city: str, nights: int, meal: Literal["none", "half"], price: float, late: bool) -> str:
    """Book a room."""
    return f"{city} {nights} {meal} {price} {late}"


class Travel(Asking):
    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Any]:
        return [book]

    def reset(self, rng: random.Random) -> str:
        return "Where to, Rome or Oslo?"


@pytest.mark.parametrize("style", ["hermes", "answer"])
def test_random_answer_calls_tools_with_arguments_that_fit(style: str) -> None:
    spec = EnvSpec(name="travel", id="", cls=Travel)
    runner = spec.make(Task(env="travel", seed=0, params=spec.check_params({"style": style})))
    rng = random.Random(1)

    async def replies() -> list[str]:
        await runner.start()
        found = [answer for _ in range(60) if (answer := runner.random_answer(rng)) is not None]
        for answer in found[:3]:
            assert not (await runner.step(assistant(answer))).info["calls"][0]["failed"]
        await runner.close()
        return found

    found = asyncio.run(replies())
    assert 15 < len(found) < 45  # the others are answers
    calls = [parse_calls(answer, style).calls[0] for answer in found]
    arguments = [json.loads(call.arguments) for call in calls]
    assert {each["meal"] for each in arguments} == {"none", "half"}
    assert {each["late"] for each in arguments} == {True, False}
    assert len({each["nights"] for each in arguments}) > 3 < len({each["price"] for each in arguments})
    assert {each["city"] for each in arguments} == {"Where", "to", "Rome", "or", "Oslo"}
