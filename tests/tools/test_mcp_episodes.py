"""Whole episodes of the environment `tools` with MCP servers."""

import asyncio
import json
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_tools_for_tests import RAW, all_gone, read_pids
from turnwise.core.errors import UserError
from turnwise.core.protocols import Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Status
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rollout.collect import CollectedGroups, Collector
from turnwise.rollout.context import FullContext
from turnwise.rollout.episode import Limits

REWARD = "def score(answer, row):\n    return float(answer == row['answer'])\n"


def write_params(folder: Path, **server: Any) -> dict[str, Any]:
    """`env.params` with one question, which the server's state answers."""
    (folder / "rows.jsonl").write_text(json.dumps({"question": "How many?", "answer": "2", "split": "train"}) + "\n")
    (folder / "score.py").write_text(REWARD)
    return {
        "tasks": str(folder / "rows.jsonl"),
        "tools": [{"mcp": RAW, **server}],
        "reward": f"{folder / 'score.py'}:score",
        "style": "answer",
    }


def collect(params: dict[str, Any], answer: Callable[[int], str], members: int = 4) -> CollectedGroups:
    renderer, spec = Renderer(tiny_tokenizer()), load_spec("tools")

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        return renderer.answer(answer(turn))

    collector = Collector(
        policy=ScriptedEngine(script, list(renderer.stop_ids)),
        make_env=spec.make,
        context=FullContext(renderer),
        limits=Limits(sampling=Sampling(max_tokens=500), max_tokens=5000, timeout_s=60.0),
        in_flight=members,
        attempts=3,
        run_seed=0,
    )
    task = Task(env="tools", seed=seed_for("train", 0), params=spec.check_params(params))
    return asyncio.run(collector.collect([task], group_size=members, round=0))


def contexts(collected: CollectedGroups) -> list[list[str]]:
    """Decoded context of every turn, by member."""
    renderer = Renderer(tiny_tokenizer())
    (group,) = collected.groups
    return [[renderer.decode(turn.context_ids) for turn in each.turns] for each in group.trajectories]


def count_twice(turn: int) -> str:
    return "<call>do count</call>" if turn < 2 else "<answer>2</answer>"


def test_every_member_has_its_own_server(tmp_path: Path) -> None:
    params = write_params(tmp_path, mcp=f"{RAW} {shlex.quote(str(tmp_path / 'pids'))}")
    found = collect(params, count_twice)
    (group,) = found.groups
    assert [each.status for each in group.trajectories] == [Status.SUCCEEDED] * 4
    assert all("- do(how): Breaks." in opening for opening, *_ in contexts(found))
    assert all("1" in first and "2" in second for _, first, second in contexts(found))
    pids = read_pids(tmp_path / "pids", lines=4)
    assert len(pids) == 8 and all_gone(pids)


def test_episode_is_retried_after_server_death(tmp_path: Path) -> None:
    """The server dies once, in one of four episodes, which is retried with the same randomness."""
    crash_once = tmp_path / "died"

    def answer(turn: int) -> str:
        return f"<call>do {crash_once}</call>" if turn == 0 else count_twice(turn)

    found = collect(write_params(tmp_path), answer)
    (group,) = found.groups
    assert [each.status for each in group.trajectories] == [Status.SUCCEEDED] * 4
    assert [each.attempt for each in group.trajectories] == [0] * 4
    assert found.counts == Counter(infra_errors=1)


def test_agent_sees_changed_tools(tmp_path: Path) -> None:
    def answer(turn: int) -> str:
        return ("<call>do more tools</call>", "<call>late {}</call>", "<answer>2</answer>")[turn]

    for _, first, second in contexts(collect(write_params(tmp_path), answer, members=2)):
        assert "The tools have changed. There are now: do(how), late()." in first
        assert "no tool" not in second


@pytest.mark.parametrize(
    ("server", "message"),
    [({"mcp": "no-such-program"}, "no command no-such-program"), ({"mcp": "cat", "shard": True}, "shared")],
)
def test_mistake_in_options_is_a_user_error(tmp_path: Path, server: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        collect(write_params(tmp_path, **server), count_twice)
