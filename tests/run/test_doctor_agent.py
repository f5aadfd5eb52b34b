"""`turnwise doctor --agent`: it names the limit that cut a reply off, and the reason if no call was answered."""

import json
from pathlib import Path
from typing import Any

import pytest

from episodes_for_tests import turn_of
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.run.doctor_agent import check_agent, explain_cut

AGENT = """
async def chat(client, task):
    messages = [{"role": "user", "content": "word " * 2000}]
    await client.chat.completions.create(model="policy", messages=messages)
    return 1.0
"""
SETTINGS = """
[agent]
function = "agent.py:chat"
tasks = "tasks.jsonl"

[rollout]
max_new_tokens = 4
"""


@pytest.mark.parametrize(
    ("asked", "tokens", "reason"),
    [
        ({"max_tokens": 3}, 3, "the agent itself asked for at most 3 tokens"),
        ({"max_completion_tokens": 3, "max_tokens": 9}, 3, "the agent itself asked for at most 3 tokens"),
        ({"max_output_tokens": 3}, 3, "the agent itself asked for at most 3 tokens"),
        ({}, 8, "raise rollout.max_new_tokens 8"),
        ({"max_tokens": 100}, 8, "raise rollout.max_new_tokens 8"),
        ({"max_tokens": 100}, 5, "the context was full: raise rollout.max_tokens 64"),
    ],
)
def test_doctor_names_the_limit_that_cut_a_reply_off(asked: dict[str, Any], tokens: int, reason: str) -> None:
    config = Config.model_validate({"rollout": {"max_new_tokens": 8, "max_tokens": 64}})
    assert explain_cut(config, turn_of([1], [2] * tokens, info={"asked": asked})).startswith(reason)


def test_doctor_names_the_setting_that_refused_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(AGENT)
    Path("agent.toml").write_text(SETTINGS)
    rows = [{"question": f"{split}?", "split": split} for split in ("train", "validation", "test")]
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"refused the agent's model calls: .*tokens \(rollout.max_tokens\)"):
        check_agent("agent.toml", [("rollout.max_tokens", "64")])
