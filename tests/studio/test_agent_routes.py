"""A checkpoint is loaded, played and chatted with through the studio's routes."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from studio_for_tests import ECHO, Page, open_studio

from work_for_tests import wait_until


@pytest.fixture
def page(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "runs/lake")
    with open_studio(Path("runs"), ECHO) as opened:
        yield opened


def answer_of(page: Page, agent: str) -> Any:
    assert wait_until(lambda: not page.get(f"agents/{agent}")["busy"])
    return page.get(f"agents/{agent}")["answer"]


def ask(page: Page, agent: str, **command: Any) -> Any:
    page.post(f"agents/{agent}/command", **command)
    return answer_of(page, agent)


def test_checkpoint_is_played_by_hand_and_by_the_model(page: Page) -> None:
    agent = page.post("agents", run="lake", checkpoint="step_000001")["id"]
    loaded = answer_of(page, agent)
    assert loaded["environments"] == ["frozen_lake"]
    assert loaded["episode"] is loaded["chat"] is None
    assert "Start an episode" in ask(page, agent, do="sample")["error"]
    episode = ask(page, agent, do="start", split="test", task=3)["episode"]
    assert episode["actions"] == ["Left", "Down", "Right", "Up"]
    assert "P" in episode["pending"]["context"]
    assert all(str(token) in episode["tokens"] for token in episode["pending"]["context_ids"])
    assert ask(page, agent, do="hint")["hint"].startswith("hint: ")
    episode = ask(page, agent, do="reply", text="fly")["episode"]
    assert episode["row"]["turns"][0]["invalid"]
    episode = ask(page, agent, do="sample")["episode"]
    by_hand, sampled = episode["row"]["turns"]
    assert by_hand["info"]["by_hand"]
    assert by_hand["action_logprobs"] == []
    assert len(sampled["action_logprobs"]) == len(sampled["action_ids"]) > 0
    assert len(episode["pictures"]) == 3
    assert page.client.get(f"/api/studio/agents/{agent}/html?turn=0").status_code == 404
    chat = ask(page, agent, do="start", part="chat", text="Be brief.")
    assert chat["episode"]["row"]["turns"] == episode["row"]["turns"]
    chat = ask(page, agent, do="say", part="chat", text="Hello")["chat"]
    assert "Be brief." in chat["row"]["turns"][0]["context"]
    assert "is not for the episode" in ask(page, agent, do="say", text="x")["error"]
    again = ask(page, agent, do="start", split="test", task=3)["episode"]
    assert again["row"]["turns"] == []
    assert again["pictures"] == episode["pictures"][:1]
    page.post(f"agents/{agent}/close")
    assert page.get("agents") == {"agents": []}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"run": "none"}, "No run"),
        ({"run": "../lake"}, "No run"),
        ({"run": "lake", "checkpoint": "../../other"}, "checkpoint"),
        ({"run": "lake", "temperature": -1}, "temperature"),
        ({"run": "lake", "program": "sh"}, "Extra inputs"),
    ],
)
def test_wrong_request_is_refused_in_one_line(page: Page, body: dict[str, Any], problem: str) -> None:
    assert problem in page.error("agents", **body)
    assert page.get("agents") == {"agents": []}


def test_missing_checkpoint_is_reported(page: Page) -> None:
    agent = page.post("agents", run="lake", checkpoint="step_000009")["id"]
    assert 'has no checkpoint "step_000009"' in answer_of(page, agent)["error"]
    assert wait_until(lambda: page.get(f"agents/{agent}")["ended"])
    assert "no longer loaded" in page.error(f"agents/{agent}/command", do="sample")
    assert "no longer loaded" in page.error("agents/unknown/command", do="sample")
