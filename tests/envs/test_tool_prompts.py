"""Prompts with tools: names, typed arguments, and an example call."""

import json
from pathlib import Path
from typing import Any

import pytest

from turnwise.core.task import Task
from turnwise.envs.play import play
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for

FILE = '''
from typing import Literal

def quote(city: str, nights: int, board: Literal["half", "full"] = "half", guests: int | None = None) -> str:
    """The price of a stay."""
    return "90"

def score(answer, row):
    return 1.0
'''


def shown(folder: Path, style: str) -> str:
    """What a person who plays sees, and before them a model."""
    (folder / "inn.py").write_text(FILE)
    (folder / "rows.jsonl").write_text('{"question": "?", "split": "train"}\n')
    given: dict[str, Any] = {"tasks": str(folder / "rows.jsonl"), "style": style}
    given |= {"tools": [f"{folder}/inn.py:quote"], "reward": f"{folder}/inn.py:score"}
    kind, lines, written = load_spec("tools"), iter(["q"]), list[str]()
    task = Task(env="tools", seed=seed_for("train", 0), params=kind.check_params(given))
    play(kind, task, lambda: next(lines), written.append)
    return "\n".join(written)


def test_compact_tool_prompt_states_types_and_optional_arguments(tmp_path: Path) -> None:
    text = shown(tmp_path, "answer")
    assert '- quote(city, nights: integer, board: "half"|"full" = "half", guests?: integer): The price' in text
    assert 'Call: <call>quote {"city": "...", "nights": 1}</call>.' in text


@pytest.mark.parametrize("style", ["hermes", "llama", "mistral"])
def test_tool_prompt_shows_the_schema_and_a_valid_call(tmp_path: Path, style: str) -> None:
    text = shown(tmp_path, style)
    (schema,) = [json.loads(line) for line in text.splitlines() if line.startswith('{"name": "quote", "desc')]
    assert schema["parameters"]["properties"]["board"]["enum"] == ["half", "full"]
    (call,) = [line for line in text.splitlines() if line.startswith("A call: ")]
    assert '{"city": "...", "nights": 1}' in call
