"""`turnwise eval` from what is typed to what is saved, against a real server that fails on order."""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from endpoint_for_tests import ReasoningModel, Server, completion, numbers, serving, write_env
from processes_for_tests import Forked, run_turnwise
from runs_for_tests import WARMUP_STEPS, printed, quiet
from turnwise.cli.main import main
from turnwise.core.errors import UserError
from turnwise.core.task import Task
from turnwise.core.trajectory import Status
from turnwise.engine.openai import client
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.evaluation import episodes
from turnwise.record.evaluation_folder import EvaluationFolder
from turnwise.run.evaluation import evaluate, models
from turnwise.run.evaluation.arguments import RemoteModels, split_environment
from turnwise.run.evaluation.evaluate import evaluate_into_folder, resume_evaluation
from turnwise.run.evaluation.models import EndpointOptions
from turnwise.run.evaluation.plan import plan_evaluation

KEY = "sk-only-for-this-test"
FAST = EndpointOptions(concurrency=4, timeout_s=120.0, retries=6)
FAULTS = ["429 retry-after=0.01", "500", "502", "503", "504", "cut", "cut body", "garbage", "empty"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.002)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def env(tmp_path: Path) -> str:
    return write_env(tmp_path)


def saved(folder: Path, name: str = "m") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"trajectories/{name}.jsonl").read_text().splitlines()]


def seeds_of(rows: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    return Counter((row["task"]["seed"], row["member"]) for row in rows)


def expected(count: int, tries: int = 1) -> Counter[tuple[int, int]]:
    return Counter((seed_for("test", index), member) for index in range(count) for member in range(tries))


def start_of(env: str, index: int) -> int:
    """The number that task `index` starts with, asked of the environment itself."""
    kind = load_spec(env)
    runner = kind.make(Task(env=kind.name, seed=seed_for("test", index), split="test"))
    return int(asyncio.run(runner.start()).messages[-1].content.split()[-1])


def some_faults(said: list[int]) -> list[str]:
    """Up to three of them before an answer, by what was said: the same each time."""
    chance = random.Random(sum(said))
    return chance.choices(FAULTS, k=chance.randrange(4)) + ["late"] * (chance.randrange(40) == 0)


def run(
    env: str, url: str, *, out: Path, overrides: Any = (), endpoint_options: EndpointOptions = FAST, **given: Any
) -> Any:
    console = quiet()
    asked = plan_evaluation([env], remote=RemoteModels(url=url, models=("m",)), overrides=overrides, **given)
    return evaluate_into_folder(asked, out, endpoint_options=endpoint_options, console=console), printed(console)


def test_every_seed_is_evaluated_once_whatever_the_endpoint_does(env: str, tmp_path: Path) -> None:
    server = Server(faults=some_faults)
    endpoint_options = replace(FAST, timeout_s=2.0)
    with serving(server) as url:
        results, text = run(
            env, url, out=tmp_path / "out", overrides=[("eval.episodes", 24)], endpoint_options=endpoint_options
        )
    starts = [start_of(env, index) for index in range(24)]
    assert set(server.met) >= {"429 retry-after=0.01", "500", "cut", "late", "garbage"}, "the faults were met"
    assert server.answered == Counter([(start,) for start in starts] + [(start, start + 1) for start in starts])
    assert seeds_of(saved(tmp_path / "out")) == expected(24)
    solved = sum(start % 3 != 0 for start in starts)
    assert 0 < solved < 24
    metrics = results.evaluations[0].metrics()
    assert (metrics["success"], metrics["dropped"]) == (solved / 24, 0)
    assert (metrics["turns"], metrics["sampled_tokens"]) == (2, 10)
    assert server.most_busy <= 4 + 2, "the concurrency, and requests that were given up"
    sent_again = sum(turn["info"]["chat_usage"]["retries"] for row in saved(tmp_path / "out") for turn in row["turns"])
    assert sent_again == sum(server.met.values())
    assert f"{100 * solved / 24:.1f} %" in text
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["finished"] is True
    assert summary["models"][0]["success"] == solved / 24
    assert "</svg>" in (tmp_path / "out/success.svg").read_text()


def test_evaluation_records_requests_and_replies(env: str, tmp_path: Path) -> None:
    server = Server()
    with serving(server) as url:
        run(env, url, out=tmp_path / "out", seeds="5", overrides=[("eval.temperature", 0.25)])
    assert {(sent["temperature"], sent["max_tokens"]) for sent in server.requests} == {(0.25, 64)}
    (row,) = saved(tmp_path / "out")
    start = start_of(env, 5)
    assert (row["task"]["seed"], row["task"]["split"], row["status"] in ("succeeded", "failed")) == (
        seed_for("test", 5),
        "test",
        True,
    )
    assert row["turns"][0]["context"].endswith(f"[user]\nnumber {start}")
    assert row["turns"][1]["context"] == f"[user]\nnumber {start + 1}"
    assert row["turns"][0]["message"]["content"] == f"<think>easy</think><answer>{start + 1}</answer>"


def interrupt_after(count: int, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Stops in the middle of writing episode `count`: half of its line is there."""
    plain, done = EvaluationFolder.add_episode, 0

    def add(self: EvaluationFolder, name: str, *given: Any) -> None:
        nonlocal done
        done += 1
        if done > count:  # nobody writes after the end
            raise error
        plain(self, name, *given)
        if done == count:
            path = self.trajectories_path(name)
            path.write_bytes(path.read_bytes()[:-50])
            raise error

    patch.setattr(EvaluationFolder, "add_episode", add)


class Killed(BaseException):
    """Raised like a signal that nothing catches."""


@pytest.mark.parametrize("again", ["resume", pytest.param("same command", marks=pytest.mark.soak)])
def test_interrupted_evaluation_is_resumed(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    server, out = Server(), tmp_path / "out"
    with serving(server) as url:
        for count in (5, 4):
            with monkeypatch.context() as patch, pytest.raises(BaseException) as stopped:
                interrupt_after(count, patch, Killed())
                run(env, url, out=out, seeds="0-9", tries=2)
            assert (
                stopped.group_contains(Killed)
                if isinstance(stopped.value, BaseExceptionGroup)
                else stopped.errisinstance(Killed)
            )
        there = len((out / "trajectories/m.jsonl").read_bytes().split(b"\n")) - 1
        assert 4 + 3 <= there < 20
        server.settle()
        before = sum(server.answered.values())
        if again == "resume":
            results = resume_evaluation(out, endpoint_options=FAST, console=quiet())
        else:
            results, _ = run(env, url, out=out, seeds="0-9", tries=2)
    assert seeds_of(saved(out)) == expected(10, tries=2)
    assert sum(server.answered.values()) - before == 2 * (20 - there), "only what was missing was asked for"
    assert results.evaluations[0].episodes == 20
    played = len(server.requests)
    assert (
        resume_evaluation(out, endpoint_options=FAST, console=quiet()).evaluations[0].metrics()
        == results.evaluations[0].metrics()
    )
    assert len(server.requests) == played, "nothing is left to play"


def test_ctrl_c_prints_how_to_resume(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Server()) as url, monkeypatch.context() as patch:
        plain = EvaluationFolder.add_episode

        def add(self: EvaluationFolder, *given: Any) -> None:
            plain(self, *given)
            signal.raise_signal(signal.SIGINT)

        patch.setattr(EvaluationFolder, "add_episode", add)
        with pytest.raises(
            KeyboardInterrupt, match=r"Stopped\. Finished episodes are saved; resume with: turnwise eval --resume .*out"
        ):
            run(env, url, out=tmp_path / "out", seeds="0-9")
    assert 1 <= len(saved(tmp_path / "out")) < 10


def test_killed_evaluation_loses_and_repeats_no_episode(env: str, tmp_path: Path) -> None:
    server, out = Server(), tmp_path / "out"
    with serving(server) as url:
        command = ["eval", env, "--endpoint", url, "--model", "m"]
        command += ["--episodes", "40", "--out", str(out), "--concurrency", "3"]
        with Forked(run_turnwise, command, env={**os.environ, "OPENAI_API_KEY": KEY}) as child:
            stop_when(lambda: sum(server.answered.values()) >= 30, server)
            os.kill(child.pid, signal.SIGKILL)
        server.hold.set()
        there = len(saved(out))
        assert 0 < there < 40
        assert main(command) == 0
    assert seeds_of(saved(out)) == expected(40)
    assert server.keys[0] == f"Bearer {KEY}"
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) >= 5
    assert not any(KEY.encode() in path.read_bytes() for path in files)


def stop_when(reached: Any, server: Server) -> None:
    for _ in range(18_000):  # a busy machine takes its time to import all
        if reached():
            server.hold.clear()
            return
        time.sleep(0.01)
    pytest.fail("the evaluation did not get so far")


def test_evaluation_folder_accepts_new_tasks_and_models_only(env: str, tmp_path: Path) -> None:
    server, out = Server(), tmp_path / "out"
    with serving(server) as url:
        run(env, url, out=out, seeds="0-2")
        run(env, url, out=out, seeds="1-4")
        assert seeds_of(saved(out)) == expected(5)
        both = plan_evaluation([env], remote=RemoteModels(url=url, models=("m", "n")), seeds="1-4")
        results = evaluate_into_folder(both, out, endpoint_options=FAST, console=quiet())
        assert [each.episodes for each in results.evaluations] == [4, 4]
        assert len(saved(out)) == 5
        with pytest.raises(UserError, match=r"holds an evaluation of 4 tasks, which one of 2 of them would replace"):
            run(env, url, out=out, seeds="2-3")
        with pytest.raises(UserError, match=r"with another eval.temperature \(0.5, now 0.0\)\. Choose another folder"):
            run(env, url, out=out, seeds="0-2", overrides=[("eval.temperature", 0.0)])
        with pytest.raises(UserError, match=r"another split \(test, now validation\)"):
            run(env, url, out=out, seeds="0-2", overrides=[("eval.split", "validation")])
        with pytest.raises(UserError, match=r"another endpoint \(.*, now http://elsewhere/v1\)"):
            run(env, "http://elsewhere/v1", out=out, seeds="0-2")


def better(request: dict[str, Any]) -> dict[str, Any]:
    """Model "n" is always right, the others are never."""
    return completion(f"<answer>{numbers(request)[-1] + (1 if request['model'] == 'n' else 2)}</answer>")


def test_models_are_compared_on_equal_tasks(env: str, tmp_path: Path) -> None:
    with serving(Server(answer=better)) as url:
        asked = plan_evaluation([env], remote=RemoteModels(url=url, models=("m", "n", "o")), seeds="0-11")
        console = quiet()
        evaluate_into_folder(asked, tmp_path / "out", endpoint_options=FAST, console=console)
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [model["success"] for model in summary["models"]] == [0.0, 1.0, 0.0]
    first, second = summary["comparisons"]
    assert (first["second"], first["success"], first["test"]) == ("n", 1.0, "exact McNemar")
    assert first["p"] == pytest.approx(2 * 2 / 2**12), "by Holm's rule for two comparisons"
    assert (second["success"], second["p"]) == (0.0, 1.0)
    text = printed(console)
    assert "vs m" in text
    assert "exact McNemar" in text
    svg = (tmp_path / "out/success.svg").read_text()
    assert all(f">{label}</text>" in svg for label in "mno")


def test_unreachable_endpoint_stops_and_keeps_finished_episodes(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "MAX_FAILURES_IN_A_ROW", 3)
    known = {start_of(env, index) for index in range(4)}
    down = [True]
    server = Server(faults=lambda said: [] if said[0] in known or not down[0] else ["503"] * 99)
    endpoint_options, overrides = EndpointOptions(concurrency=2, retries=1), [("rollout.attempts", 2)]
    with serving(server) as url:
        message = r"3 episodes in a row failed.* 127.0.0.1 answered 503 .*; resume with: turnwise eval --resume .*out"
        with pytest.raises(UserError, match=message):
            run(env, url, out=tmp_path / "out", seeds="0-30", endpoint_options=endpoint_options, overrides=overrides)
        assert seeds_of(saved(tmp_path / "out")) == expected(4)
        down[0] = False
        resume_evaluation(tmp_path / "out", endpoint_options=endpoint_options, console=quiet())
    assert seeds_of(saved(tmp_path / "out")) == expected(31)


def test_failed_episodes_are_reported_and_retried_on_resume(env: str, tmp_path: Path) -> None:
    bad, down = start_of(env, 1), [True]
    server = Server(faults=lambda said: ["500"] * 99 if said[0] == bad and down[0] else [])
    endpoint_options = EndpointOptions(concurrency=2, retries=0)
    with serving(server) as url:
        results, text = run(env, url, out=tmp_path / "out", seeds="0-4", endpoint_options=endpoint_options)
        assert (results.dropped, results.evaluations[0].episodes) == (1, 4)
        assert "1 episodes were dropped. Retry them: turnwise eval --resume" in text
        assert json.loads((tmp_path / "out/summary.json").read_text())["finished"] is False
        down[0] = False
        assert resume_evaluation(tmp_path / "out", endpoint_options=endpoint_options, console=quiet()).dropped == 0
    assert seeds_of(saved(tmp_path / "out")) == expected(5)


def test_rejected_evaluation_leaves_no_folder(env: str, tmp_path: Path) -> None:
    with (
        serving(Server(faults=lambda said: ["401"] * 99)) as url,
        pytest.raises(UserError, match=r"requires a key .*: set OPENAI_API_KEY, or name .* \(api_key_env\)"),
    ):
        run(env, url, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_evaluate_checks_endpoints_before_a_model_is_loaded(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_policy(*given: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(models, "load_policy", load_policy)
    server = Server(check=ReasoningModel())
    with serving(server) as url:
        asked = plan_evaluation(["tiny", env], remote=RemoteModels(url=url, models=("gpt-5-minni",)), seeds="0-2")
        missing = r'The model `gpt-5-minni` does not exist.*: check the name "gpt-5-minni", and that the endpoint ends'
        with pytest.raises(UserError, match=missing):
            evaluate_into_folder(asked, tmp_path / "out", endpoint_options=FAST, console=quiet())
    assert server.requests == [] and not (tmp_path / "out").exists()


def test_evaluate_plays_with_a_reasoning_model(env: str, tmp_path: Path) -> None:
    server = Server(ReasoningModel(), check=ReasoningModel())
    with serving(server) as url:
        asked = plan_evaluation([env], remote=RemoteModels(url=url, models=("gpt-5-mini",)), seeds="0-4")
        results = evaluate_into_folder(asked, tmp_path / "out", endpoint_options=FAST, console=quiet())
    assert Counter(each.status for each in results.evaluations[0].trajectories).keys() == {
        Status.SUCCEEDED,
        Status.FAILED,
    }, "reasoning takes nothing from rollout.max_tokens"
    assert all("temperature" not in sent for sent in server.requests)


def test_truncated_turns_are_reported(env: str, tmp_path: Path) -> None:
    with serving(Server(answer=lambda request: completion("hm", finish="length"))) as url:
        _, text = run(env, url, out=tmp_path / "out", seeds="0-2")
    assert "m: 100 % of turns were cut at rollout.max_new_tokens 64. Raise it" in text


TINY = [("model.warmup_steps", WARMUP_STEPS), ("rollout.max_new_tokens", 12), ("system.threads", 1)]


def test_local_model_is_compared_with_an_endpoint(tmp_path: Path) -> None:
    names = {"asked": completion("<answer>Teacher</answer>")}
    console = quiet()
    with serving(Server(answer=lambda request: names["asked"])) as url:
        asked = plan_evaluation(
            ["tiny", "bandit"], remote=RemoteModels(url=url, models=("org/far",)), overrides=TINY, seeds="0-7", tries=2
        )
        results = evaluate_into_folder(asked, endpoint_options=FAST, console=console)
    assert [each.label for each in results.models] == ["tiny", "org/far"]
    assert [each.episodes for each in results.evaluations] == [16, 16]
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "eval-bandit-tiny-and-1-more"
    assert seeds_of(saved(folder, "tiny")) == seeds_of(saved(folder, "org-far")) == expected(8, tries=2)
    ids = saved(folder, "tiny")[0]["turns"][0]["action_ids"]
    assert ids and len(ids) <= 12
    assert "sign-flip over tasks" in printed(console)
    again = evaluate_into_folder(
        plan_evaluation(["tiny", "bandit"], overrides=TINY, seeds="0-7", tries=2), console=quiet()
    )
    assert again.evaluations[0].metrics() == results.evaluations[0].metrics(), "equal seeds, equal episodes"


def test_evaluation_on_training_tasks_is_reported(env: str, tmp_path: Path) -> None:
    with serving(Server()) as url:
        _, text = run(env, url, out=tmp_path / "out", seeds="0-2", overrides=[("eval.split", "train")])
        assert {row["task"]["split"] for row in saved(tmp_path / "out")} == {"train"}
        resume_evaluation(tmp_path / "out", endpoint_options=FAST, console=quiet())
    assert len(saved(tmp_path / "out")) == 3
    assert "These are training tasks" in text


MISTAKES = [
    ("", "There is nothing to evaluate"),
    ("tiny", 'No run "tiny". If it is a model, name the environment after it, such as frozen_lake'),
    ("tiny sokobn", 'Unknown recipe or environment "sokobn": did you mean "sokoban"?'),
    ("tny bandit", 'Unknown model "tny": did you mean "tiny"?'),
    ("tiny tiny bandit", "tiny is given twice"),
    ("tiny bandit --tries 0", "tries 0: must be 1 or more"),
    ("tiny bandit --seeds 3,x", 'seeds: "x" is neither a seed nor a file that exists'),
    ("tiny bandit --seeds 3 --episodes 4", "--episodes and --seeds both select the tasks"),
    ("tiny bandit --concurrency 3", "--concurrency has no effect without --endpoint"),
    ("tiny bandit --api-key-env A", "--api-key-env has no effect without --endpoint"),
    ("tiny bandit --model m", "--endpoint URL and --model NAME must be given together"),
    ("bandit --endpoint http://h/v1", "--endpoint URL and --model NAME must be given together"),
    (
        "--endpoint http://h/v1 --model m",
        "The environment is missing. Run: turnwise eval ENV --endpoint http://h/v1 --model m",
    ),
    ("bandit --endpoint h --model m", "endpoint must be a URL such as"),
    ("bandit --endpoint http://h/v1 --model m --concurrency 0", "concurrency 0: must be 1 or more"),
    ("bandit --endpoint http://h/v1 --model m --timeout 0", "timeout 0: must be above 0"),
    ("bandit --endpoint http://h/v1 --model m --api-key-env NOT_SET", "The variable that api_key_env names is not"),
    ("bandit --endpoint http://h/v1 --model m --model.device cpu", "model.device has no effect on an endpoint"),
    ("tiny bandit --rollout.groups 3", "rollout.groups has no effect on an evaluation"),
    ("tiny bandit --temperature 0 --eval.top_p 0.5", "eval.top_p has no effect with eval.temperature 0"),
    ("tiny bandit --split train --eval.split test", "eval.split is given twice"),
    ("--resume nowhere", "nowhere is not an evaluation"),
    ("tiny --resume x", "--resume continues an evaluation with the settings it started with: remove tiny"),
    ("--resume x --tries 3", "--resume continues an evaluation with the settings it started with: remove --tries"),
]


@pytest.mark.parametrize(("typed", "line"), MISTAKES)
def test_invalid_arguments_print_one_line_and_start_nothing(
    typed: str, line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "run_episodes", lambda *given, **others: pytest.fail("it was started"))
    assert main(["eval", *typed.split()]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"turnwise: {line}")
    assert output.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_eval_help_lists_arguments_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--help"]) == 0
    text = capsys.readouterr().out
    for part in ("SOURCE... [ENV]", "--endpoint URL", "--tries K", "--seeds", "--resume FOLDER", "OPENAI_API_KEY"):
        assert part in text


@pytest.mark.parametrize("env", ["sokoban", "taxi", "my_env.py:MyEnv", "gymnasium:MiniGrid-Empty-5x5-v0"])
def test_last_argument_may_name_an_environment(env: str) -> None:
    assert split_environment(["tiny", env], None) == (["tiny"], env)
    assert split_environment([env, "tiny"], None) == ([env, "tiny"], None)
