"""Small hand-written run folders, and a client of the viewer's server over them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from httpx2 import Response

from turnwise.viewer.access import AccessPolicy
from turnwise.viewer.api import make_app

CONFIG = """\
seed = 3
[env]
kind = "frozen_lake"
[env.params]
size = 4
[env.mix]
[model]
name = "tiny"
[algo]
advantage = "gae"
preset = "none"
[train]
steps = 10
[train.optimizer]
kind = "adamw"
betas = [0.9, 0.95]
"""


def line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def turn(context: str = "P _\n_ G", said: str = "<answer>Right</answer>", **given: Any) -> dict[str, Any]:
    return {
        "context": context,
        "context_ids": [1, 2, 3],
        "extends": False,
        "action_ids": [453, 7],
        "action_logprobs": [-0.1, -0.30000000000000004],
        "advantages": [0.5, 0.25],
        "spans": [["answer", 0, 2]],
        "message": {"role": "assistant", "content": said},
        "reward": 0.0,
        "picture": None,
        **given,
    }


def episode(step: int = 1, group: int = 0, member: int = 0, **given: Any) -> dict[str, Any]:
    row = {
        "step": step,
        "group": group,
        "member": member,
        "attempt": 0,
        "task": {"env": "frozen_lake", "seed": 100 * step + group, "split": "train", "params": {"turns": [1]}},
        "status": "succeeded" if member else "failed",
        "reward": float(member),
        "tokens": 2,
        "rewards": {},
        "timings": {},
        "start": None,
        "turns": [turn()],
    }
    return row | given


def make_run(
    folder: Path, episodes: Sequence[Mapping[str, Any]] = (), metrics: Sequence[Mapping[str, Any]] = ()
) -> Path:
    """Write a run, its trajectories step by step as in training."""
    (folder / "trajectories").mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(CONFIG)
    (folder / "metrics.jsonl").write_bytes(b"".join(map(line, metrics)))
    for row in episodes:
        add_episode(folder, row)
    return folder


def add_episode(folder: Path, row: Mapping[str, Any], raw: bytes | None = None) -> None:
    """`raw`: written in place of the row's line, including its newline."""
    name = f"eval_{row['evaluation']}" if "evaluation" in row else "step"
    path = folder / f"trajectories/{name}_{row['step']:06d}.jsonl"
    offset = path.stat().st_size if path.exists() else 0
    written = line(row) if raw is None else raw
    with path.open("ab") as file:
        file.write(written)
    entry = {
        **{key: row[key] for key in ("evaluation",) if key in row},
        **{key: row[key] for key in ("step", "group", "member", "status", "reward", "tokens")},
        "environment": row["task"]["env"],
        "seed": row["task"]["seed"],
        "turns": len(row["turns"]),
        "offset": offset,
        "length": len(written) - 1,
    }
    with (folder / "trajectories/index.jsonl").open("ab") as file:
        file.write(line(entry))


def make_evaluation(folder: Path, models: Mapping[str, Sequence[Mapping[str, Any]]]) -> Path:
    (folder / "trajectories").mkdir(parents=True)
    (folder / "models").mkdir()
    listed = "".join(f'[[models]]\nname = "{name}"\nlabel = "{name}"\nsource = "runs/{name}"\n' for name in models)
    (folder / "evaluation.toml").write_text(f'environment = "frozen_lake"\nsplit = "test"\ntries = 1\n{listed}')
    for name, episodes in models.items():
        (folder / f"models/{name}.toml").write_text(CONFIG)
        (folder / f"trajectories/{name}.jsonl").write_bytes(b"".join(map(line, episodes)))
    return folder


def client(folder: Path, **policy: Any) -> TestClient:
    return TestClient(
        make_app(folder, AccessPolicy(**policy)), base_url="http://localhost:7860", follow_redirects=False
    )


def ask(folder_or_client: Path | TestClient, name: str, **query: Any) -> dict[str, Any]:
    """Return a response of the API, which must succeed."""
    response = get(folder_or_client, name, **query)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def get(folder_or_client: Path | TestClient, name: str, **query: Any) -> Response:
    asked = client(folder_or_client) if isinstance(folder_or_client, Path) else folder_or_client
    return asked.get(f"/api/{name}", params=query)
