"""`turnwise serve`."""

import base64
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from processes_for_tests import forked_with_output, run_turnwise
from turnwise.config.load import build, to_toml
from turnwise.core.errors import UserError
from turnwise.run import serving
from vision_models_for_tests import png


def test_serve_prints_what_clients_need_and_records_their_calls(tmp_path: Path):
    command = ["serve", "--port", "0", "--admin-token", "the-admin"]
    command += ["--model.name", "tiny", "--rollout.max_new_tokens", "8"]
    with forked_with_output(run_turnwise, command, cwd=tmp_path) as (server, lines):
        exports = dict(lines.readline().strip().removeprefix("export ").split("=", 1) for _ in range(4))
        assert "Ctrl-C" in lines.readline()
        url, key = exports["OPENAI_BASE_URL"], exports["OPENAI_API_KEY"]
        with openai.OpenAI(base_url=url, api_key=key) as client:
            reply = client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])
        episodes = f"{url}/turnwise/episodes"
        refused = httpx2.post(episodes, headers={"Authorization": f"Bearer {key}"}, timeout=60)
        admin = {"Authorization": "Bearer the-admin"}
        opened = httpx2.post(episodes, headers=admin, timeout=60).json()
        with openai.OpenAI(base_url=url, api_key=opened["api_key"]) as client:
            client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])
        closed = httpx2.delete(f"{episodes}/{opened['id']}", headers=admin, timeout=60)
        again = httpx2.delete(f"{episodes}/{opened['id']}", headers=admin, timeout=60)
        os.kill(server.pid, signal.SIGINT)
    assert server.returncode == 0
    assert exports["ANTHROPIC_BASE_URL"] == url.removesuffix("/v1")
    assert exports["ANTHROPIC_API_KEY"] == key
    assert reply.model == "tiny"
    assert 1 <= reply.usage.completion_tokens <= 8
    assert (refused.status_code, again.status_code) == (401, 404)
    assert closed.json() == {"id": opened["id"], "calls": 1, "reward": None}
    with sqlite3.connect(tmp_path / "runs" / "serve" / "calls.sqlite") as calls:
        assert calls.execute("SELECT COUNT(*) FROM calls").fetchone() == (2,)


def test_restarted_serve_continues_a_conversation_with_images(tmp_path: Path):
    command = ["serve", "--port", "0", "--api-key", "k", "--model.name", "tiny_vlm", "--rollout.max_new_tokens", "8"]
    url = f"data:image/png;base64,{base64.b64encode(png(16, 16)).decode()}"
    shown: list[Any] = [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": url}}]
    messages: list[Any] = [{"role": "user", "content": shown}]
    counts = []
    for _ in range(2):
        with forked_with_output(run_turnwise, command, cwd=tmp_path) as (server, lines):
            exports = dict(lines.readline().strip().removeprefix("export ").split("=", 1) for _ in range(4))
            with openai.OpenAI(base_url=exports["OPENAI_BASE_URL"], api_key="k", max_retries=0) as client:
                reply = client.chat.completions.create(model="any", messages=messages)
            os.kill(server.pid, signal.SIGINT)
        counts.append(reply.usage.prompt_tokens)
        messages += [{"role": "assistant", "content": reply.choices[0].message.content}]
        messages += [{"role": "user", "content": "Sure?"}]
    assert counts[0] < counts[1]
    assert len([*(tmp_path / "runs/serve/images").glob("*.png")]) == 1
    with sqlite3.connect(tmp_path / "runs/serve/calls.sqlite") as calls:
        assert calls.execute("SELECT SUM(extends) FROM calls").fetchone() == (1,), "the recorded ids are continued"


def test_serve_run_uses_its_settings_and_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "config.toml").write_text(
        to_toml(build({"rollout": {"temperature": 0.5, "max_tokens": 3000}})), encoding="utf-8"
    )
    monkeypatch.setattr(serving, "find_run_or_none", lambda name: (tmp_path, None))
    monkeypatch.setattr(serving, "find_checkpoint", lambda path, checkpoint: path / "checkpoints" / "step-3")
    config = serving.configure_serving([("model.name", "runs/x"), ("rollout.max_tokens", "4000")])
    assert config.model.name == str(tmp_path / "checkpoints" / "step-3")
    assert (config.rollout.temperature, config.rollout.max_tokens) == (0.5, 4000)


def test_serve_unknown_model_is_an_error_of_the_user():
    with pytest.raises(UserError, match="no-such-model"):
        serving.serve(
            [("model.name", "no-such-model")],
            host="127.0.0.1",
            port=0,
            api_key=None,
            admin_token=None,
            out=Path("unused.sqlite"),
            write=print,
        )
