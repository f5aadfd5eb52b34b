"""Whole episodes with MCP servers: `kind = "tools"`, from the recipe's table to the trajectory."""

import asyncio
import json
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_ground_for_tests import RAW, all_gone, pids_in
from turnwise.core.errors import UserError
from turnwise.core.protocols import Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Status
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rollout.collect import Collected, Collector
from turnwise.rollout.context import FullHistory
from turnwise.rollout.limits import Limits

REWARD = "def score(answer, row):\n    return float(answer == row['answer'])\n"


def files(folder: Path, **server: Any) -> dict[str, Any]:
    """`env.params` of one question that a server's state answers."""
    (folder / "rows.jsonl").write_text(json.dumps({"question": "How many?", "answer": "2", "split": "train"}) + "\n")
    (folder / "score.py").write_text(REWARD)
    return {
        "tasks": str(folder / "rows.jsonl"),
        "tools": [{"mcp": RAW, **server}],
        "reward": f"{folder / 'score.py'}:score",
        "style": "answer",
    }


def collect(params: dict[str, Any], says: Callable[[int], str], members: int = 4) -> Collected:
    renderer, kind = Renderer(tiny_tokenizer()), load_spec("tools")

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        return renderer.answer(says(turn))

    collector = Collector(
        policy=ScriptedEngine(script, list(renderer.stop_ids)),
        make_env=kind.make,
        context=FullHistory(renderer),
        limits=Limits(sampling=Sampling(max_tokens=500), max_tokens=5000, timeout_s=60.0),
        in_flight=members,
        attempts=3,
        run_seed=0,
    )
    task = Task(env="tools", seed=seed_for("train", 0), params=kind.check_params(params))
    return asyncio.run(collector.collect([task], group_size=members, round=0))


def told(collected: Collected) -> list[list[str]]:
    """What each member's turns were told, in words."""
    renderer = Renderer(tiny_tokenizer())
    (group,) = collected.groups
    return [[renderer.decode(turn.context_ids) for turn in each.turns] for each in group.trajectories]


def counting(turn: int) -> str:
    return "<call>do count</call>" if turn < 2 else "<answer>2</answer>"


def test_every_member_has_a_server_of_its_own(tmp_path: Path) -> None:
    params = files(tmp_path, mcp=f"{RAW} {shlex.quote(str(tmp_path / 'pids'))}")
    found = collect(params, counting)
    (group,) = found.groups
    assert [each.status for each in group.trajectories] == [Status.SUCCEEDED] * 4
    assert all("- do(how): Breaks." in opening for opening, *_ in told(found))
    assert all("1" in first and "2" in second for _, first, second in told(found))
    pids = pids_in(tmp_path / "pids", lines=4)
    assert len(pids) == 8 and all_gone(pids)


def test_a_server_that_dies_is_no_failure_of_the_agent(tmp_path: Path) -> None:
    """It dies once, in one of four episodes: that one is run again, and all of them succeed."""
    mark = tmp_path / "died"

    def says(turn: int) -> str:
        return f"<call>do {mark}</call>" if turn == 0 else counting(turn)

    found = collect(files(tmp_path), says)
    (group,) = found.groups
    assert [each.status for each in group.trajectories] == [Status.SUCCEEDED] * 4
    assert [each.attempt for each in group.trajectories] == [0] * 4, "with the same luck"
    assert found.counts == Counter(infra_errors=1)


def test_the_agent_is_told_of_changed_tools(tmp_path: Path) -> None:
    def says(turn: int) -> str:
        return ("<call>do more tools</call>", "<call>late {}</call>", "<answer>2</answer>")[turn]

    for _, first, second in told(collect(files(tmp_path), says, members=2)):
        assert "The tools have changed. There are now: do(how), late()." in first
        assert "no tool" not in second


@pytest.mark.parametrize(
    ("server", "complaint"),
    [({"mcp": "no-such-program"}, "no command no-such-program"), ({"mcp": "cat", "shard": True}, "shared")],
)
def test_a_mistake_in_the_recipe_is_told_at_once(tmp_path: Path, server: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        collect(files(tmp_path, **server), counting)
