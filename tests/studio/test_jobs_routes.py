"""Start, stop, resume and fork runs through the studio's routes."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from studio_for_tests import Page, open_studio

from turnwise.config.load import build, read_run, to_toml
from turnwise.record.run_folder import RunFolder
from turnwise.studio.new_run import _short
from work_for_tests import wait_until

WAITS = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A studio whose jobs do not end by themselves."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    with open_studio(Path("runs"), WAITS) as opened:
        yield opened


def write_run(name: str, *overrides: tuple[str, str]) -> None:
    RunFolder.create(Path("runs") / name, to_toml(build({}, [("env.kind", "bandit"), *overrides]))).close()


def printed(page: Page, number: int) -> list[str]:
    """Return the arguments that turnwise would have been called with."""
    assert page.wait(number)["status"] == "finished"
    words: list[str] = json.loads(page.get(f"jobs/{number}/log", after=0)["text"].replace("'", '"'))
    return words


def test_new_run_gets_a_name_and_starts(page: Page) -> None:
    job = page.post("jobs", target="bandit", settings={"train.steps": "3", "seed": "5"})
    assert (job["number"], job["title"], job["run"]) == (1, "bandit", "bandit-tiny-seed5")
    assert printed(page, 1) == [
        "train",
        "bandit",
        "--train.steps=3",
        "--seed=5",
        "--record.folder=runs",
        "--record.name=bandit-tiny-seed5",
    ]


def test_names_of_new_runs_differ_from_all_runs_and_jobs(busy: Page) -> None:
    write_run("bandit-tiny-seed0")
    names = [busy.post("jobs", target="bandit")["run"] for _ in range(3)]
    assert names == ["bandit-tiny-seed0-2", "bandit-tiny-seed0-3", "bandit-tiny-seed0-4"]
    assert "already writes mine" in busy.error("jobs", **named(busy, "mine"))
    assert "already contains a run" in busy.error(
        "jobs", target="bandit", settings={"record.name": "bandit-tiny-seed0"}
    )
    assert len(busy.get("jobs")["jobs"]) == 4


def named(page: Page, name: str) -> dict[str, Any]:
    """Start a run of this name, and return the request for another one."""
    body = {"target": "bandit", "settings": {"record.name": name}}
    page.post("jobs", **body)
    return body


def test_wrong_settings_start_nothing(page: Page) -> None:
    error = page.error("jobs", target="bandit", settings={"train.steps": "many"})
    assert error == "train.steps = many: must be a whole number of 1 or more"
    assert page.post("check", target="bandit", settings={"train.steps": "many"}) == {"error": error}
    assert page.get("jobs") == {"jobs": [], "problem": None}


def test_check_returns_the_values_of_a_fork(page: Page) -> None:
    write_run("parent", ("train.learning_rate", "0.01"))
    checked = page.post("check", start_from="parent", settings={"train.steps": "9"})
    assert checked["settings"]["train.learning_rate"]["value"] == "0.01"
    assert checked["settings"]["train.steps"]["value"] == "9"


def test_fork_takes_the_settings_of_its_parent(page: Page) -> None:
    write_run("parent")
    job = page.post("jobs", start_from="parent", settings={"train.learning_rate": "0.003"})
    assert job["title"] == "fork of parent"
    words = printed(page, 1)
    assert words[:4] == ["train", "--from", "runs/parent", "--train.learning_rate=0.003"]


def test_fork_can_continue_from_the_weights_of_its_parent(page: Page) -> None:
    write_run("parent")
    page.post("jobs", start_from="parent", weights=True)
    assert "--model.name=runs/parent" in printed(page, 1)


def test_resume_uses_the_command_of_the_run(page: Page) -> None:
    write_run("taught", ("sft.demos", "solver"))
    write_run("trained")
    assert page.post("jobs", resume="taught")["run"] == "taught"
    page.post("jobs", resume="trained", settings={"train.max_minutes": "2"})
    assert printed(page, 1) == ["sft", "--resume", "runs/taught"]
    assert printed(page, 2) == ["train", "--resume", "runs/trained", "--train.max_minutes=2"]


def test_resume_is_refused_where_it_cannot_work(busy: Page) -> None:
    write_run("loop", ("env.kind", "agent"))
    write_run("done")
    Path("runs/done/summary.json").write_text("{}")
    write_run("trained")
    assert "tw.Trainer(resume=...)" in busy.error("jobs", resume="loop")
    assert "done is finished. Fork it" in busy.error("jobs", resume="done")
    assert "No run 'missing'" in busy.error("jobs", resume="missing")
    assert "No run '../runs/trained'" in busy.error("jobs", resume="../runs/trained")
    busy.post("jobs", resume="trained")
    assert "already writes trained" in busy.error("jobs", resume="trained")


def test_stop_and_remove_a_job(busy: Page) -> None:
    busy.post("jobs", target="bandit")
    assert wait_until(lambda: busy.get("jobs")["jobs"][0]["started"])
    assert "has not ended" in busy.error("jobs/1/remove")
    assert busy.post("jobs/1/stop", now=True)["status"] in ("stopping", "stopped")
    assert busy.wait(1)["status"] == "stopped"
    assert busy.post("jobs/1/remove") == {}
    assert busy.get("jobs")["jobs"] == []
    assert "No job 1" in busy.error("jobs/1/stop")


def test_log_of_a_missing_job_is_an_error(page: Page) -> None:
    response = page.client.get("/api/studio/jobs/99/log")
    assert (response.status_code, response.json()) == (400, {"error": "No job 99. Reload the list of jobs."})


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct"),
        ("runs/lake/checkpoints/best/", "best"),
        ("a b:c", "a-b-c"),
        ("...", "run"),
        ("..", "run"),
        ("", "run"),
        ("x" * 200, "x" * 60),
    ],
)
def test_short_names_are_names_of_folders(name: str, short: str) -> None:
    assert _short(name) == short


@pytest.mark.soak
def test_run_is_started_stopped_resumed_and_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real training in child processes."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    small = {"model.warmup_steps": "15", "rollout.groups": "2", "rollout.group_size": "4", "eval.episodes": "4"}
    settings = {**small, "train.steps": "2000", "record.name": "one", "checkpoint.every": "5"}
    with open_studio(Path("runs")) as page:
        page.post("jobs", target="bandit", settings=settings)
        metrics = Path("runs/one/metrics.jsonl")
        assert wait_until(lambda: metrics.exists() and '"step":7' in metrics.read_text())
        page.post("jobs/1/stop")
        stopped = page.wait(1)
        assert (stopped["status"], stopped["returncode"]) == ("stopped", 130)
        assert "resume with" in page.get("jobs/1/log")["text"]
        steps = metrics.read_text().count("rollout/groups")
        page.post("jobs", resume="one", settings={"train.max_minutes": "0.1"})
        assert page.wait(2)["status"] == "finished"
        assert metrics.read_text().count("rollout/groups") > steps
        page.post("jobs", start_from="one", settings={"train.steps": "2", "record.name": "two"})
        assert page.wait(3)["status"] == "finished"
        assert read_run("runs/two")["record"]["parent"] == str(tmp_path / "runs/one")
