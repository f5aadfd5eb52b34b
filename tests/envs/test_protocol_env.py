"""Environments that follow the `Env` protocol themselves: how they are made, and what they may return."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import turnwise as tw
from turnwise.cli.main import main
from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import assistant
from turnwise.envs.play import play
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec

SOURCE = '''
import random
import turnwise as tw


class Coins:
    """Guess the side on which the coin fell."""

    class Params(tw.StrictParams):
        sides: int = 2
        """Sides of the coin."""

    def __init__(self, task: tw.Task, rng: random.Random) -> None:
        self.side = random.Random(task.seed).randrange(task.params.get("sides", 2))
        self.rng = rng

    async def start(self) -> tw.Observation:
        return tw.Observation(messages=(tw.system("Answer with a number."), tw.user("Which side?")))

    async def step(self, action: tw.Message) -> tw.StepResult:
        right = action.content.strip() == str(self.side)
        return tw.StepResult(
            messages=(tw.user(f"no {self.rng.random()}"),), reward=float(right), terminated=right, success=right
        )

    async def close(self) -> None:
        pass

    def random_answer(self, rng: random.Random) -> str:
        return str(rng.randrange(2))


def make_coins(task, rng):
    return Coins(task, rng)
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "coins.py"
    path.write_text(SOURCE)
    return path


def task_of(spec: EnvSpec, number: int = 0, **params: Any) -> tw.Task:
    return tw.Task(env=spec.name, seed=seed_for("train", number), params=spec.check_params(params))


async def first_turn(spec: EnvSpec, task: tw.Task, member: int) -> tuple[int, str]:
    runner = spec.make(task, member)
    await runner.start()
    result = await runner.step(assistant("x"))
    return runner.env.side, result.messages[0].content


@pytest.mark.parametrize("name", ["Coins", "make_coins"])
def test_env_gets_its_start_from_the_task_and_later_randomness_from_rng(name: str, file: Path) -> None:
    spec = load_spec(f"{file}:{name}")
    turns = [asyncio.run(first_turn(spec, task_of(spec), member)) for member in (0, 1, 1)]
    assert turns[0][0] == turns[1][0], "one start state per group"
    assert turns[0][1] != turns[1][1] and turns[1] == turns[2], "later randomness is the member's"
    sides = {asyncio.run(first_turn(spec, task_of(spec, number), 0))[0] for number in range(10)}
    assert sides == {0, 1}


def test_params_of_an_env_are_checked(file: Path) -> None:
    spec = load_spec(f"{file}:Coins")
    assert spec.summary == "Guess the side on which the coin fell."
    assert [(each.name, each.default, each.description) for each in spec.parameters()] == [
        ("sides", "2", "Sides of the coin.")
    ]
    assert task_of(spec, sides=1).params == {"sides": 1}
    with pytest.raises(UserError, match='no such parameter: did you mean "sides"'):
        spec.check_params({"side": 3})
    with pytest.raises(UserError, match="no such parameter"):
        load_spec(f"{file}:make_coins").check_params({"sides": 3})


def test_play_passes_whole_replies_to_an_env(file: Path) -> None:
    spec = load_spec(f"{file}:Coins")
    lines, written = iter(["hint", "0", "1"]), list[str]()
    assert play(spec, task_of(spec), read_line=lambda: next(lines), write=written.append)
    assert "Type a whole reply of the agent, or q." in written
    assert written[-1] == "Won. Total reward 1."


def test_dry_run_and_envs_take_an_env_of_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", f"{file}:Coins", "--dry-run", "--env.params.sides", "1"]) == 0
    assert main(["envs", f"{file}:Coins"]) == 0
    assert "--env.params.sides" in capsys.readouterr().out


class NoClose:
    def __init__(self, task: tw.Task, rng: random.Random) -> None: ...
    async def start(self) -> None: ...
    async def step(self, action: tw.Message) -> None: ...


class NotAsync(NoClose):
    async def close(self) -> None: ...
    def step(self, action: tw.Message) -> None: ...


class NoArguments:
    async def start(self) -> None: ...
    async def step(self, action: tw.Message) -> None: ...
    async def close(self) -> None: ...


class OddParams(NoClose):
    Params = ("sides",)

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (NoClose, r"NoClose is not an environment, since it has no close: make it a subclass of TextEnv"),
        (NotAsync, r"NotAsync\.step is not a coroutine: define it with async def"),
        (NoArguments, r"NoArguments is not called with \(task, rng\): let its __init__ take a tw\.Task"),
        (lambda task, rng: None, r"not a class or a function with a name"),
        (lambda: None, r"not a class or a function with a name"),
        (random.Random, r"Random is not an environment, since it has no start"),
        (7, r"7 is not an environment"),
    ],
)
def test_spec_of_rejects_other_objects(cls: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec_of(cls)


def test_params_must_be_a_pydantic_model() -> None:
    with pytest.raises(UserError, match=r"OddParams\.Params is not a pydantic model"):
        spec_of(OddParams).check_params({})


def make_nothing(task: tw.Task, rng: random.Random) -> None:
    return None


def test_factory_that_makes_no_env_is_refused() -> None:
    spec = spec_of(make_nothing)
    with pytest.raises(UserError, match="make_nothing is not an environment, since it has no start"):
        spec.make(task_of(spec))


USER = tw.user("Well?")
OPENINGS = {
    "a tw.Observation": None,
    "a tuple of tw.Message": tw.Observation(messages="hello"),
    "at least one message": tw.Observation(messages=()),
    "one of the roles system, user": tw.Observation(messages=(tw.Message(role="human", parts=USER.parts),)),
    "messages with parts that are tw.TextPart": tw.Observation(
        messages=(tw.Message(role="user", parts=(tw.TextPart(text=3),)),)
    ),
    "tools that are tw.ToolSpec": tw.Observation(messages=(USER,), tools=("look",)),
    "a tw.Picture or None": tw.Observation(messages=(USER,), picture="picture"),
}
RESULTS = {
    "a tw.StepResult": "won",
    "a tuple of tw.Message": tw.StepResult(messages=("hello",)),
    "messages with parts that are tw.TextPart": tw.StepResult(messages=(tw.Message(role="user", parts="hello"),)),
    "a reward of at most 1e+09": tw.StepResult(reward=float("nan")),
    "info that is a dict": tw.StepResult(info=[]),
    "info without 'summary'": tw.StepResult(info={"summary": True}),
    "info['rewards'] that are numbers by name": tw.StepResult(info={"rewards": {"speed": "fast"}}),
    "info['state'] that is a text": tw.StepResult(info={"state": 3}),
    "a tw.Picture or None": tw.StepResult(picture=((1,),)),
}


class Returns:
    opening: Any = tw.Observation(messages=(USER,))
    result: Any = tw.StepResult(messages=(USER,), reward=1)

    def __init__(self, task: tw.Task, rng: random.Random) -> None: ...

    async def start(self) -> Any:
        return self.opening

    async def step(self, action: tw.Message) -> Any:
        return self.result

    async def close(self) -> None: ...


async def play_one_turn() -> tw.StepResult:
    spec = spec_of(Returns)
    runner = spec.make(task_of(spec))
    await runner.start()
    result = await runner.step(assistant("x"))
    await runner.close()
    return result


@pytest.mark.parametrize("expected", OPENINGS)
def test_start_that_returns_something_else_is_a_failure(expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Returns, "opening", OPENINGS[expected])
    with pytest.raises(EnvironmentFailure, match=r"Returns\.start returned") as failure:
        asyncio.run(play_one_turn())
    assert expected in str(failure.value)


@pytest.mark.parametrize("expected", RESULTS)
def test_step_that_returns_something_else_is_a_failure(expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Returns, "result", RESULTS[expected])
    with pytest.raises(EnvironmentFailure, match=r"Returns\.step returned") as failure:
        asyncio.run(play_one_turn())
    assert expected in str(failure.value)


def test_step_accepts_lists_and_any_kind_of_number(monkeypatch: pytest.MonkeyPatch) -> None:
    result = tw.StepResult(messages=[USER], reward=True, success=True, info={"rewards": {"speed": 2}, "note": "x"})
    monkeypatch.setattr(Returns, "result", result)
    played = asyncio.run(play_one_turn())
    assert (played.messages, played.reward) == ((USER,), 1.0)
    assert played.info == {"success": True, "rewards": {"speed": 2}, "note": "x"}


class Raises(Returns):
    async def step(self, action: tw.Message) -> Any:
        raise KeyError("missing")


def test_bug_in_an_env_names_file_and_line() -> None:
    spec = spec_of(Raises)

    async def play_one() -> None:
        runner = spec.make(task_of(spec))
        await runner.start()
        await runner.step(assistant("x"))

    with pytest.raises(
        EnvironmentFailure, match=r"Raises\.step raised KeyError: 'missing' at test_protocol_env\.py:\d+"
    ):
        asyncio.run(play_one())
