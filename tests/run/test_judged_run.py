"""Whole runs whose rewards come from judges, whose tools come from servers, and whose keys stay where they are."""

import asyncio
import json
import re
import sqlite3
import sys
import threading
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from judges_for_tests import JudgeServer, attempts, serving
from mcp_tools_for_tests import RAW
from processes_for_tests import Forked
from runs_for_tests import printed, quiet, small
from turnwise.config.schema import Config
from turnwise.core.errors import Outage, UserError
from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import seed_for
from turnwise.envs.tool_env import ToolEnvRunner
from turnwise.record.run_folder import RunFolder
from turnwise.rewards.judge.client import AnswerCache
from turnwise.rollout.failures import DropMonitor, DroppedEpisodes
from turnwise.run.configure import configure
from turnwise.run.evaluation.evaluate import evaluate_into_folder
from turnwise.run.evaluation.plan import plan_evaluation
from turnwise.run.train import train
from turnwise.tools.search.indexing import build_index
from turnwise.training.sft import play_demonstration, solve_demonstrations, solver_script

CANARY = "sk-canary-8d1f0c"


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("SERVER_KEY", CANARY)


def longest_wins(messages: list[dict[str, str]]) -> str:
    """Return scores for a whole group, by the length of each answer."""
    said = attempts(messages)
    return json.dumps({"scores": {str(place): min(10, len(text)) for place, text in enumerate(said, start=1)}})


def judge_table(url: str, folder: Path, **options: Any) -> dict[str, Any]:
    return {"model": "m", "rubric": "says much", "endpoint": url, "cache": str(folder / "verdicts"), **options}


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [row for row in RunFolder.open(run).read_metrics() if "rollout/success" in row]


def everything_under(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.usefixtures("keyed")
def test_group_judge_scores_a_run_and_its_key_is_not_stored(tmp_path: Path) -> None:
    server, console = JudgeServer(longest_wins), quiet()
    with serving(server) as url:
        judges = (judge_table(url, tmp_path, mode="relative", weight=0.5, name="much"),)
        train(small(tmp_path, reward__judges=judges, train__steps=2), console=console)
    rows = steps_of(tmp_path / "run")
    assert len(rows) == 2 and all(0 < row["reward/much"] <= 1 for row in rows)
    assert rows[-1]["judge/calls"] == len(server.requests) > 0
    assert set(server.keys) == {f"Bearer {CANARY}"}
    assert CANARY.encode() not in everything_under(tmp_path)
    assert CANARY not in printed(console)


def test_state_judge_rewards_each_turn_of_a_run(tmp_path: Path) -> None:
    """Every answer begins with a description, which the judge scores 7 of 10; the prediction is missing."""
    server = JudgeServer(lambda messages: '{"score": 7}')
    with serving(server) as url:
        judge = {"model": "m", "endpoint": url, "cache": str(tmp_path / "verdicts")}
        params = {"reasoning": "both", "state_judge": judge, "grounding_reward": 50}
        prefix = "<think><observation>two arms</observation></think>"
        settings = {"env__params": params, "rollout__prefix": prefix, "model__warmup_steps": 0, "train__steps": 1}
        train(small(tmp_path, **settings, eval__every=0, eval__episodes=1), console=quiet())
    (row,) = steps_of(tmp_path / "run")
    assert row["reward/grounding"] == pytest.approx(0.7) and row["reward/prediction"] == 0.0
    assert row["reward/env"] == pytest.approx(50 * 0.7, abs=2.0), "the bandit itself pays at most 1"
    assert row["judge/calls"] == len(server.requests) > 0


@pytest.mark.usefixtures("keyed")
def test_spent_judge_budget_stops_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    server = JudgeServer(longest_wins)
    with serving(server) as url:
        judges = (judge_table(url, tmp_path, mode="relative", concurrency=1, max_calls=3),)
        config = small(tmp_path, reward__judges=judges, train__steps=50, eval__every=0, checkpoint__every=100)
        with pytest.raises(UserError, match=r"budget of 3 calls is spent: raise its max_calls in a new run"):
            train(config, console=quiet())
        done = len(steps_of(tmp_path / "run"))
        assert 1 <= done < 50 and len(server.requests) == 3
        with pytest.raises(UserError, match="budget of 3 calls is spent"):
            train(config, resume=True, console=quiet())
        assert len(server.requests) == 3, "what was spent stays spent"
    assert (tmp_path / f"run/checkpoints/step_{done:06d}/model.safetensors").exists()


def train_judged(folder: Path, url: str, resume: bool) -> None:
    """Train until the judge's budget is spent."""
    judges = (judge_table(url, folder, mode="relative", concurrency=1, max_calls=5),)
    config = small(folder, reward__judges=judges, train__steps=50, eval__every=0, checkpoint__every=100)
    try:
        train(config, resume=resume, console=quiet())
    except UserError as error:
        sys.exit(str(error))


def test_judge_budget_survives_kills(tmp_path: Path) -> None:
    """Killed while its third request is under way, with no checkpoint: that one counts twice, the others once."""
    third, killed = threading.Event(), threading.Event()

    def script(messages: list[dict[str, str]]) -> str:
        if len(server.requests) == 3:
            third.set()
            killed.wait(600)
        return longest_wins(messages)

    server = JudgeServer(script)
    with serving(server) as url, (tmp_path / "stderr").open("w") as stderr:
        with Forked(train_judged, tmp_path, url, False) as run:
            assert third.wait(600)
            run.kill()
        killed.set()
        with Forked(train_judged, tmp_path, url, True, stderr=stderr.fileno()):
            pass
    assert "The judge's budget of 5 calls is spent" in (tmp_path / "stderr").read_text()
    asked = [json.dumps(request["messages"]) for request in server.requests]
    assert len(asked) == 5, "what was spent before the kill stays spent"
    assert asked[3] == asked[2] and len(set(asked)) == 4, "verdicts that were given before the kill are not paid again"


def test_step_without_verdicts_stops_the_run_untrained(tmp_path: Path) -> None:
    answers = iter([*[longest_wins] * 2, *[lambda messages: "no idea"] * 100])
    with serving(JudgeServer(lambda messages: next(answers)(messages))) as url:
        judges = (judge_table(url, tmp_path, mode="relative", asks=1, retries=0),)
        config = small(tmp_path, reward__judges=judges, train__steps=50, rollout__groups=2, eval__every=0)
        with pytest.raises(UserError, match=r"No group of this step could be scored .* --resume"):
            train(config, console=quiet())
    assert len(steps_of(tmp_path / "run")) < 50


class Tiring:
    """A judge that has no verdict any more on two answers of three, once it `is_gone`."""

    def __init__(self) -> None:
        self.is_gone, self.asked = False, count(1)

    def __call__(self, messages: list[dict[str, str]]) -> str:
        lost = self.is_gone and next(self.asked) % 3
        return "out of order" if lost else json.dumps({"score": 5})


class Rubric(NamedTuple):
    """Tasks whose answers, all right by their form, are scored by a judge alone."""

    judge: Tiring
    params: dict[str, Any]
    """env.params of `tools`, the same in all tests, so that tiny is warmed up for them once."""

    def config(self, folder: Path, **settings: Any) -> Config:
        given = {"env__kind": "tools", "env__params": self.params, "eval__every": 0, "eval__episodes": 4}
        given |= {name.replace(".", "__"): value for name, value in FEW_TOKENS}
        return small(folder, **(given | settings))


FEW_TOKENS = [
    ("model.warmup_steps", 20),
    ("rollout.attempts", 1),
    ("rollout.max_tokens", 1024),
    ("rollout.max_new_tokens", 20),
]


@pytest.fixture(scope="module")
def rubric_tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rubric]:
    folder, judge = tmp_path_factory.mktemp("rubric"), Tiring()
    rows = [{"question": f"Price {n}?", "split": split} for n, split in enumerate(["train", "validation", "test"] * 8)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "tools.py").write_text('def price(fruit: str) -> int:\n    """The price."""\n    return 3\n')
    tasks = {"tasks": str(folder / "rows.jsonl"), "style": "answer", "tools": [f"{folder}/tools.py:price"]}
    with serving(JudgeServer(judge)) as url:
        reward = {"use": "judge", **judge_table(url, folder, asks=1, retries=0)}
        yield Rubric(judge=judge, params={**tasks, "reward": [reward]})


@pytest.fixture
def rubric(rubric_tasks: Rubric, monkeypatch: pytest.MonkeyPatch) -> Rubric:
    monkeypatch.setattr(ToolEnvRunner, "random_answer", TextEnvRunner.random_answer)  # tiny answers and never calls
    monkeypatch.setattr(AnswerCache, "get", lambda *_: None)  # tiny repeats answers that were scored before
    return rubric_tasks


def test_rubric_judge_outage_stops_the_run_and_resume_continues_it(
    rubric: Rubric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, add = rubric.judge, DropMonitor.add
    judge.is_gone = False

    def gone_after(monitor: DropMonitor, dropped: DroppedEpisodes) -> None:
        add(monitor, dropped)
        judge.is_gone = True

    config = rubric.config(tmp_path, train__steps=3, rollout__group_size=12)
    with monkeypatch.context() as patch, pytest.raises(Outage) as error:
        patch.setattr(DropMonitor, "add", gone_after)
        train(config, console=quiet())
    done = len(steps_of(tmp_path / "run"))
    assert 1 <= done < 3
    expected = r"^\d+ of \d+ episodes were dropped, .* the reward judge: the judge m gave no verdict \(asked once\)"
    assert re.match(expected, str(error.value))
    assert str(error.value).endswith(f". Finished steps are saved; resume with: turnwise train --resume {tmp_path}/run")
    judge.is_gone = False
    summary = train(config, resume=True, console=quiet())
    assert summary["finished"] and len(steps_of(tmp_path / "run")) == 3
    assert summary["dropped_no_reward"] == sum(row["rollout/dropped_no_reward"] for row in steps_of(tmp_path / "run"))


def test_judge_outage_stops_an_evaluation(rubric: Rubric, tmp_path: Path) -> None:
    rubric.judge.is_gone = True
    with pytest.raises(Outage, match=r"episodes were dropped.* the judge m gave no verdict"):
        train(rubric.config(tmp_path), console=quiet())
    assert not (tmp_path / "run").exists(), "nothing is done that could be gone on with"
    typed = [("env.params", rubric.params), ("eval.episodes", 8), *FEW_TOKENS]
    with pytest.raises(Outage, match=r"episodes were dropped.* the judge m gave no verdict"):
        evaluate_into_folder(plan_evaluation(["tiny", "tools"], overrides=typed), tmp_path / "out", console=quiet())


@pytest.mark.usefixtures("keyed")
def test_run_with_every_kind_of_tool_and_a_rubric(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text('def price(fruit: str) -> int:\n    """The price."""\n    return 3\n')
    rows = [
        {"question": f"Price {number}?", "answer": str(number % 3), "split": split}
        for number, split in enumerate(["train", "validation", "test"] * 4)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "notes.md").write_text("# Fruit\nA fig costs 2.\n")
    build_index([tmp_path / "notes.md"], tmp_path / "index")
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("CREATE TABLE fruit (name TEXT, price INTEGER)")
    console = quiet()
    server = JudgeServer(lambda messages: json.dumps({"score": 5}))
    with serving(server) as url:
        judge = {"use": "judge", "weight": 0.25, **judge_table(url, tmp_path)}
        params = {
            "tasks": str(tmp_path / "rows.jsonl"),
            "style": "answer",
            "max_turns": 2,
            "tools": [
                f"{tmp_path}/tools.py:price",
                "python",
                {"use": "search", "index": str(tmp_path / "index")},
                {"use": "sql", "database": str(tmp_path / "shop.db")},
                {"mcp": RAW, "shared": True, "env": {"KEY": "SERVER_KEY"}},
            ],
            "reward": ["exact_match", judge],
        }
        given = {"env__kind": "tools", "env__params": params, "rollout__max_tokens": 1024, "eval__episodes": 4}
        train(small(tmp_path, **given, train__steps=2, rollout__max_new_tokens=20), console=console)
    assert 0 < len(server.requests) <= 2 * 8 + 3 * 4, "nobody pays for the warm-up"
    (first, _) = steps_of(tmp_path / "run")
    assert {"reward/exact_match", "reward/judge", "reward/env"} <= first.keys()
    assert 0 < first["reward/judge"] <= 0.5  # only answers are judged
    assert first["reward/env"] == pytest.approx(first["reward/exact_match"] + 0.25 * first["reward/judge"], abs=1e-6)
    assert CANARY.encode() not in everything_under(tmp_path)
    assert CANARY not in printed(console)
    assert "run --episodes 4\n" in re.sub(" *\n", "\n", printed(console)), "no more than there are"


def test_deep_search_judged_rewards_the_judges_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like `turnwise train deep_search_judged`, with the solver as policy."""
    server = JudgeServer(lambda messages: '{"reason": "found", "score": 7}')
    with serving(server) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        config = configure("deep_search_judged")
        kind = load_spec(config.env.kind)
        task = Task(env=kind.name, params=kind.check_params(config.env.params), seed=seed_for("train", 0))
        exchanges, result = asyncio.run(
            play_demonstration(partial(kind.make, task), partial(solver_script, False), attempts=3)
        )
    assert result.success and result.info["rewards"] == {"exact_match": 1.0, "f1": 1.0, "judge": 0.7}
    assert result.reward == pytest.approx(0.5 + 0.2 + 0.3 * 0.7)
    (request,) = server.requests
    assert request["model"] == "gpt-5-mini"
    found = exchanges[-1].messages[-1].content.splitlines()[-1]
    assert len(found) > 20 and found in request["messages"][1]["content"], "the judge sees what was found"


def test_demonstrations_use_a_judge_only_if_it_decides_success(monkeypatch: pytest.MonkeyPatch) -> None:
    server = JudgeServer(lambda messages: '{"score": 10}')
    with serving(server) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        config = configure("deep_search_judged")
        kind, params = load_spec(config.env.kind), config.env.params

        def shown(params: dict[str, Any]) -> int:
            worlds = [(kind, kind.check_params(params))]
            show = lambda done, total: None  # noqa: E731
            return len(asyncio.run(solve_demonstrations(worlds, count=2, seed=0, think=False, attempts=3, show=show)))

        assert shown(params) == 2 and server.requests == []
        judge_first = [table for table in params["reward"] if table["use"] == "judge"]
        assert shown(params | {"reward": judge_first}) == 2 and len(server.requests) == 2
