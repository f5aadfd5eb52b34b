"""The Python API: train, sft, evaluate, load_run, and functions of one's own."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

import turnwise as tw
from endpoint_for_tests import Server, serving, write_env
from processes_for_tests import Forked
from turnwise.cli.main import main
from turnwise.config.schema import Config
from turnwise.run import notebook
from turnwise.run.configure import TOKEN_LIMITS, configure
from turnwise.user_code.references import is_reference, load_function, reference_to

SMALL: dict[str, Any] = {
    "model__warmup_steps": 2,
    "rollout__groups": 2,
    "rollout__group_size": 2,
    "train__mini_batch": 4,
    "eval__episodes": 2,
    "quiet": True,
}


class Larger(tw.TextEnv):
    """Which of two numbers is larger?"""

    max_turns = 1

    def reset(self, rng: Any) -> str:
        self.pair = rng.sample(range(1, 10), 2)
        return f"Which is larger, {self.pair[0]} or {self.pair[1]}?"

    def step(self, action: str) -> tw.Outcome:
        return tw.won("Yes.") if int(action) == max(self.pair) else tw.lost("No.")


class Parity:
    """An environment that follows the protocol itself; it ends only when the agent is right."""

    def __init__(self, task: tw.Task, rng: Any) -> None:
        self.number = task.seed % 100

    async def start(self) -> tw.Observation:
        return tw.Observation(messages=(tw.user(f"Is {self.number} even or odd?"),))

    async def step(self, action: tw.Message) -> tw.StepResult:
        right = ("odd" if self.number % 2 else "even") in action.content
        return tw.StepResult(messages=(tw.user("No."),), reward=float(right), terminated=right, success=right)

    async def close(self) -> None:
        return None


def length(trajectory: Any) -> float:
    return float(sum(len(turn.action_ids) for turn in trajectory.turns))


CALLS: list[str] = []


def centred(inputs: tw.AdvantageInputs) -> torch.Tensor:
    CALLS.append("advantage")
    returns = (inputs.token_rewards * inputs.mask).sum(1, keepdim=True)
    return (returns - returns.mean()).expand(inputs.mask.shape)


def plain(inputs: tw.LossInputs) -> torch.Tensor:
    CALLS.append("loss")
    return -inputs.advantages * inputs.policy_logprobs


def keep_all(scores: torch.Tensor) -> torch.Tensor:
    CALLS.append("filter")
    return torch.ones_like(scores, dtype=torch.bool)


@pytest.fixture
def folder(tmp_path: Path) -> dict[str, Any]:
    return {**SMALL, "record__folder": str(tmp_path)}


def test_evaluate_takes_a_class_that_no_file_defines(tmp_path: Path) -> None:
    class Nested(Larger):
        pass

    small = {"episodes": 2, "quiet": True, "model__warmup_steps": 0}
    result = tw.evaluate("tiny", Nested, out=tmp_path / "evaluation", **small)
    assert result.summary["tasks"] == 2 and len(result.trajectories) == 2


def test_train_returns_a_run_with_its_results(tmp_path: Path, folder: dict[str, Any]) -> None:
    rows: list[Any] = []
    run = tw.train(Larger, steps=2, name="larger", on_step=rows.append, **folder)

    assert run.path == tmp_path / "larger" and run.finished
    assert run.summary == json.loads((run.path / "summary.json").read_text()) and run.summary["steps"] == 2
    assert [row["step"] for row in rows] == [1, 2] and "rollout/success" in rows[0]
    steps = [row for row in run.metrics() if "rollout/episodes" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert run.metrics().to_pandas().shape[0] == len(run.metrics())
    assert {row["step"] for row in run.trajectories()} == {1, 2}
    assert len(run.trajectories(2)) == 4
    assert tw.load_run(run.path) == run and run.config.train.steps == 2
    assert "<table>" in run.metrics()._repr_html_() and "<svg" in run._repr_html_()

    result = run.evaluate(episodes=3, temperature=0.0, out=tmp_path / "evaluation", quiet=True)
    assert len(result.trajectories) == 3 and result.interval[0] <= result.success <= result.interval[1]
    assert result.summary["models"][0]["episodes"] == 3 and (result.path / "summary.json").is_file()
    assert (run.export(tmp_path / "exported") / "model.safetensors").is_file()


def test_train_and_evaluate_take_an_env_that_follows_the_protocol(tmp_path: Path, folder: dict[str, Any]) -> None:
    short = {"rollout__max_tokens": 120, "rollout__max_new_tokens": 8}
    run = tw.train(Parity, steps=1, name="parity", **short, **folder)
    assert run.config.env.kind.endswith("test_api.py:Parity")
    rows = run.trajectories()
    assert {row["status"] for row in rows} <= {"succeeded", "truncated_tokens"} and len(rows) == 4
    assert all(f"Is {row['task']['seed'] % 100} even or odd?" in row["turns"][0]["context"] for row in rows)
    assert any(len(row["turns"]) > 1 for row in rows)
    result = tw.evaluate(run, Parity, episodes=2, out=tmp_path / "evaluation", quiet=True, **short)
    assert len(result.trajectories) == 2


def test_train_works_in_a_running_event_loop(folder: dict[str, Any]) -> None:
    async def cell() -> tw.Run:
        return tw.train(Larger, steps=1, **folder)

    assert asyncio.run(cell()).finished


def test_interrupt_in_an_event_loop_stops_the_run_with_a_checkpoint(
    tmp_path: Path, folder: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed, cancel = threading.Event(), notebook.cancel_task_of
    monkeypatch.setattr(notebook, "WAIT_S", 0.05)
    monkeypatch.setattr(notebook, "cancel_task_of", lambda thread: (cancel(thread), noticed.set())[0])

    def stop(row: Any) -> None:
        if row["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)
            assert noticed.wait(600)

    async def cell() -> tw.Run:
        return tw.train(Larger, steps=4, name="cut", on_step=stop, **folder)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"stopped; resume with: .*cut"):
        asyncio.run(cell())
    assert signal.getsignal(signal.SIGINT) is before
    run = tw.load_run(tmp_path / "cut")
    assert not run.finished
    assert [path.name for path in (run.path / "checkpoints").glob("step_*")] == ["step_000002"]
    steps: list[int] = []
    assert run.resume(on_step=lambda row: steps.append(row["step"]), quiet=True).finished
    assert steps == [3, 4]


def test_evaluate_asks_the_models_of_an_endpoint(tmp_path: Path) -> None:
    env, server = write_env(tmp_path), Server()
    with serving(server) as url:
        result = tw.evaluate("someone-7b", env, episodes=6, endpoint=url, out=tmp_path / "evaluation", quiet=True)
    wrong = [each for each in result.trajectories if not each.status.succeeded]
    assert len(result.trajectories) == 6 and result.success == (6 - len(wrong)) / 6
    assert result.summary["models"][0]["episodes"] == 6
    assert all(len(each.turns) == 2 for each in result.trajectories)


def test_train_in_an_event_loop_raises_the_error_of_the_run(folder: dict[str, Any]) -> None:
    async def cell() -> tw.Run:
        return tw.train(Larger, steps=1, algo__advantage="grppo", **folder)

    with pytest.raises(tw.UserError, match="grppo"):
        asyncio.run(cell())


def test_train_of_a_recipe_has_the_settings_of_the_command(folder: dict[str, Any]) -> None:
    run = tw.train("bandit", steps=1, **folder)
    expected = configure("bandit")
    assert run.config.algo == expected.algo and run.config.critic == expected.critic
    assert run.config.train.optimizer == expected.train.optimizer and expected.train.optimizer.kind == "muon"


def test_tiny_has_defaults_that_learn_in_any_environment(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from turnwise.envs.bandit.env import Bandit\nclass Mine(Bandit): pass\n", encoding="utf-8")
    config = configure(f"{file}:Mine")
    assert config.train.optimizer.kind == "muon" and config.critic.kind == "head" and config.rollout.group_size > 1
    learns = configure(f"{file}:Mine", like="frozen_lake", overrides=[("train.steps", config.train.steps)])
    groups = {"groups": config.rollout.groups, "group_size": config.rollout.group_size}
    assert (config.algo, config.critic, config.train) == (learns.algo, learns.critic, learns.train)
    assert config.rollout == learns.rollout.model_copy(update=groups)
    other = configure(f"{file}:Mine", overrides=[("model.name", "someone/7b")])
    assert other.train.optimizer.kind == "adamw" and other.train.learning_rate == 1e-6
    assert configure(f"{file}:Mine", overrides=[("train.optimizer", "adamw")]).train.optimizer.kind == "adamw"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tw.train("bandit", minutes=3), 'unknown key minutes: did you mean "max_minutes"?'),
        (lambda: tw.train("bandit", step=3), 'unknown key step: did you mean "steps"?'),
        (
            lambda: tw.evaluate("tiny", "bandit", episode=3),
            'unknown key episode: did you mean "data__episodes" or "episodes"?',
        ),
        (lambda: tw.sft("bandit", epoch=3), 'unknown key epoch: did you mean "train__epochs" or "epochs"?'),
        (lambda: tw.train("bandit", train_steps=3), 'unknown key train_steps: did you mean "steps"?'),
        (lambda: tw.train("bandit", algo_kl_coef=3), 'unknown key algo_kl_coef: did you mean "algo__kl_coef"?'),
        (lambda: tw.Trainer(step=3), 'unknown key step: did you mean "steps"?'),
        (lambda: tw.train("bandit", beta=0.0), "unknown key beta: use algo__kl_coef (0 keeps no reference model)"),
        (lambda: tw.train("bandit", like="sokoban"), "like sokoban: bandit is a recipe and has its own settings."),
        (lambda: tw.evaluate("tiny", "bandit", tries=0), "tries 0: must be 1 or more."),
        (lambda: tw.evaluate("tiny", "bandit", seeds="x"), "seeds: "),
        (lambda: tw.train("bandit", algo__estimator="archer_offline", quiet=True), "data.sources"),
        (lambda: tw.train(config={"train": {"steps": 1}}), "config is a dict. Give a tw.Config(train="),  # type: ignore[arg-type]
        (lambda: tw.train("bandit", on_step=5), "on_step is 5. Give a function"),  # type: ignore[arg-type]
        (lambda: tw.train("bandit", on_step=lambda: None), "on_step must take one argument"),  # type: ignore[arg-type,misc]
        (lambda: tw.train("bandit", model=torch.nn.Linear(2, 2)), "Model is a value of type Linear"),  # type: ignore[arg-type]
        (lambda: tw.sft(data=[{"messages": []}]), "tw.sft: data is a list, not the path"),  # type: ignore[arg-type]
        (lambda: tw.train(env=lambda task, rng: None), "a lambda is not a class or a function with a name"),  # type: ignore[arg-type,return-value]
        (lambda: tw.train(env=Larger()), "give Larger itself, not Larger()"),  # type: ignore[arg-type]
        (lambda: tw.train(), "tw.train needs an environment"),
        (lambda: tw.train("bandit", algo={"advantage": "gae"}), "algo is a section: give one of its keys"),
        (lambda: tw.train("bandit", algo_advantage="gae"), 'did you mean "algo__advantage"?'),
        (lambda: tw.load_run("nowhere"), 'No run "nowhere"'),
    ],
)
def test_errors_of_the_python_api_name_keywords(call: Callable[[], object], text: str) -> None:
    with pytest.raises(tw.UserError) as caught:
        call()
    assert text in str(caught.value) and "--" not in str(caught.value)


def test_like_takes_a_recipes_settings_without_its_environment() -> None:
    recipe, plain = configure("frozen_lake"), configure("sudoku")
    config = configure("sudoku", like="frozen_lake")
    assert config.env.kind == "sudoku" and config.env.params == {}
    assert (config.algo, config.train) == (recipe.algo, recipe.train)
    limits = {name: getattr(plain.rollout, name) for name in TOKEN_LIMITS}
    assert limits["max_new_tokens"] > recipe.rollout.max_new_tokens
    assert config.rollout == recipe.rollout.model_copy(update=limits)
    large = configure("sudoku", like="frozen_lake", overrides=[("model.name", "someone/7b")])
    assert large.rollout.max_new_tokens == Config().rollout.max_new_tokens
    with pytest.raises(tw.UserError, match="frozen_lake is a recipe"):
        configure("frozen_lake", like="bandit")
    with pytest.raises(tw.UserError, match='Unknown recipe "lake"'):
        configure("sudoku", like="lake")


def test_lambdas_have_references_of_their_own() -> None:
    first, second = (lambda trajectory: 0.25), (lambda trajectory: 0.75)
    references = [reference_to(each) for each in (first, second, first)]
    assert all(is_reference(each) for each in references)
    assert references[0] == references[2] != references[1]
    assert [load_function(each, "reward.functions") for each in references] == [first, second, first]


def test_train_takes_functions_for_rewards_and_algorithms(folder: dict[str, Any]) -> None:
    CALLS.clear()
    run = tw.train(
        Larger,
        steps=1,
        reward__functions=[length],
        algo__advantage=centred,
        algo__loss=plain,
        algo__filter=keep_all,
        **folder,
    )
    assert set(CALLS) == {"advantage", "loss", "filter"}
    assert run.config.algo.advantage.kind == f"{Path(__file__).resolve()}:centred"
    assert run.path.name == "Larger-tiny-centred-seed0"
    (row,) = [row for row in run.metrics() if "rollout/episodes" in row]
    assert row["reward/length"] > 0


def test_train_takes_a_lambda_as_advantage(folder: dict[str, Any]) -> None:
    CALLS.clear()
    run = tw.train(Larger, steps=1, algo__advantage=lambda inputs: centred(inputs), **folder)
    assert run.finished and CALLS == ["advantage"] and "lambda" in run.path.name
    assert [row["step"] for row in run.metrics() if "rollout/episodes" in row] == [1]


def test_command_line_takes_an_advantage_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "my_algo.py"
    file.write_text(
        dedent("""
            def centred(inputs):
                returns = (inputs.token_rewards * inputs.mask).sum(1, keepdim=True)
                return (returns - returns.mean()).expand(inputs.mask.shape)

            def broken(inputs):
                return inputs.nothing
        """),
        encoding="utf-8",
    )
    small = [f"--{key.replace('__', '.')}={value}" for key, value in SMALL.items() if key != "quiet"]
    small = [each.replace("=False", "=false") for each in small]
    words = ["train", "bandit", "--train.steps=1", f"--record.folder={tmp_path}", *small]

    def train(name: str) -> int:
        return main([*words, f"--name={name}", f"--algo.advantage={file}:{name}"])

    assert train("centred") == 0 and tw.load_run(tmp_path / "centred").finished
    assert train("broken") == train("missing") == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", r"algo.advantage broken failed: AttributeError: .*nothing.* at \w+.py:\d+"),
        ("short", r"returned the shape \[\d+, 1\] instead of \[\d+, \d+\]"),
        ("text", "returned the text"),
    ],
)
def test_faulty_advantage_is_one_line(name: str, message: str, folder: dict[str, Any]) -> None:
    functions = {
        "broken": lambda inputs: inputs.nothing,
        "short": lambda inputs: inputs.token_rewards[:, :1],
        "text": lambda inputs: "1.0",
    }
    functions[name].__name__ = name
    with pytest.raises(tw.UserError, match=message):
        tw.train(Larger, steps=1, algo__advantage=functions[name], **folder)


def test_function_with_the_arguments_of_earlier_versions_is_refused(folder: dict[str, Any]) -> None:
    def old(inputs: tw.AdvantageInputs, params: Any) -> torch.Tensor:
        return inputs.token_rewards

    message = r"algo\.advantage old must take \(inputs\)\. For settings of its own, write a class"
    with pytest.raises(tw.UserError, match=message):
        tw.train(Larger, steps=1, algo__advantage=old, **folder)


def evaluate_run(path: Path) -> None:
    tw.load_run(path).evaluate(episodes=1)


def test_class_of_a_notebook_trains_and_its_run_names_the_fix(tmp_path: Path, folder: dict[str, Any]) -> None:
    scope: dict[str, Any] = {"tw": tw, "__name__": "__main__"}
    exec(  # no file defines it
        dedent("""
            class Notebook(tw.TextEnv):
                "Say 1."
                def reset(self, rng): return "Say 1."
                def step(self, action): return tw.won() if action == "1" else tw.lost()
        """),
        scope,
    )
    run = tw.train(scope["Notebook"], steps=1, **folder)
    assert run.config.env.kind == "python:Notebook"
    assert run.evaluate(episodes=1, out=tmp_path / "evaluation", quiet=True).summary["tasks"] == 1
    errors = tmp_path / "errors"
    with errors.open("w") as file, Forked(evaluate_run, run.path, stderr=file.fileno()) as process:
        assert process.wait() == 1
    assert "Notebook was defined in a notebook, at a prompt or as a lambda: save it in a file" in errors.read_text()


def test_file_that_trains_when_imported_is_refused(tmp_path: Path, folder: dict[str, Any]) -> None:
    file = tmp_path / "script.py"
    file.write_text("import turnwise as tw\ntw.train('bandit')\n", encoding="utf-8")
    with pytest.raises(tw.UserError, match=r"calls tw\.train when it is imported: move the call under `if __name__"):
        tw.train(f"{file}:Anything", **folder)


def test_sft_imitates_and_resumes_as_a_run(tmp_path: Path, folder: dict[str, Any]) -> None:
    small = {key: value for key, value in folder.items() if key.partition("__")[0] not in ("rollout", "train")}
    run = tw.sft("bandit", count=4, epochs=1, name="sft", **small)
    assert run.finished and "sft/digest" in run.metrics()[0]
    assert tw.train("bandit", model=run, steps=1, name="further", **{**folder, "model__warmup_steps": None}).finished


def test_resume_continues_a_stopped_run(tmp_path: Path, folder: dict[str, Any]) -> None:
    run = tw.train(Larger, steps=3, name="stopped", max_minutes=1e-9, **folder)
    assert not run.finished and run.summary == {}
    rows: list[Any] = []
    assert run.resume(max_minutes=60, on_step=rows.append, quiet=True).finished
    assert [row["step"] for row in rows] == [1, 2, 3] and run.summary["steps"] == 3


def test_config_holds_all_settings_of_a_run(folder: dict[str, Any]) -> None:
    first = tw.train(Larger, steps=1, name="first", **folder)
    config = first.config.model_copy(update={"record": first.config.record.model_copy(update={"name": "second"})})
    second = tw.train(config=config, quiet=True)
    assert second.path.name == "second" and second.config == config
    assert second.summary["success_after"] == first.summary["success_after"]


def test_train_needs_an_environment_or_a_config(folder: dict[str, Any]) -> None:
    with pytest.raises(tw.UserError, match=r"tw\.train needs an environment"):
        tw.train()
    with pytest.raises(tw.UserError, match="config holds all settings"):
        tw.train("bandit", config=tw.Config())
