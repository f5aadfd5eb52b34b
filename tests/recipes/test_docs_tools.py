"""The page on tools: its tool with a state plays as it says, and its table of limits is the sandbox's."""

import asyncio
import re
from dataclasses import fields
from pathlib import Path

from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.envs.tools.tool_factory import make_tools
from turnwise.sandbox.types import SandboxLimits

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")


def test_the_tool_with_a_state_keeps_it_for_its_episode(tmp_path: Path) -> None:
    block = re.search(r"^```python\n# basket\.py\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert block is not None
    (tmp_path / "basket.py").write_text(block[1])
    kind = load_spec(f"{tmp_path / 'basket.py'}:Basket")

    async def play(*texts: str) -> tuple[float, bool, bool]:
        episode = kind.make(Task(env=kind.name, params=kind.check_params({}), seed=seed_for("train", 0)))
        wanted = re.findall(r"[a-z]+", (await episode.start()).messages[-1].content.partition(":")[2])
        for text in texts:
            result = await episode.step(assistant(text.format(*wanted)))
        await episode.close()
        return result.reward, result.success, result.terminated

    put = '<tool_call>{{"name": "put", "arguments": {{"fruit": "%s"}}}}</tool_call>'
    assert asyncio.run(play(put % "{0}", put % "{1}")) == (1.0, True, True)
    assert asyncio.run(play(put % "{0}", put % "stone", "<answer>full</answer>")) == (0.0, False, True)


def test_the_table_of_limits_is_that_of_the_sandbox() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.,]+) \|", PAGE, flags=re.MULTILINE)
    told = {name: float(number.replace(",", "")) for name, number in rows}
    assert told == {field.name: field.default for field in fields(SandboxLimits)}
    (shown,) = re.findall(r'\{ use = "python", timeout_s = (\d+), memory_mb = (\d+) \}', PAGE)
    make_tools([{"use": "python", "timeout_s": int(shown[0]), "memory_mb": int(shown[1])}])
