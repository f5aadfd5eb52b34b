"""Runs for the tests of the page, and a server over them."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opened_page_for_tests import OpenedPage, serving_app
from runs_for_tests import quiet, small
from turnwise.core.images import image_hash, image_token_id
from turnwise.core.trajectory import TokenName
from turnwise.pictures.image_store import ImageStore
from turnwise.record.run_folder import SPANS_FILE, RunFolder
from turnwise.record.steps import EpisodeSource, StepRecord
from turnwise.run.train import train

if TYPE_CHECKING:
    from playwright.sync_api import Page

ONE, TWO, OTHER, HOSTILE, LONG = "lake-seed0", "lake-seed1", "lake-faster", "hostile<b>", "long"
STEPS = 4
LOST, GAINED = (2, 5), (4, 5, 7)
"""Tasks that OTHER solves before and after training."""
LONG_TOKENS = 120_000
SPAN_STEPS = 6
NASTY_LANE = "rollouts <b>1</b>"
NASTY = (
    '<script>window.ran=1</script><img src=x onerror="window.ran=1"> \x1b[31mred\x1b[0m \u202egnp.exe '
    "漢字 かな 한글 🙂 ┌─┐\n│中│\n└─┘"
)

CRITIC_METRICS = {
    "train/q_explained": 0.25,
    "train/v_explained": -0.125,
    "train/overestimation": 1.5,
    "train/target_drift": 0.0625,
    "train/effective_samples": 0.75,
}
"""Metrics of a critic of utterances, which OTHER has."""
ONE_PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)
"""A PNG file of one red pixel."""


def make_runs(root: Path) -> None:
    """Write a run of the tiny model, one with another seed, one with another setting, a hostile one and a long one."""
    settings = {"env__kind": "frozen_lake", "eval__every": 2, "train__steps": STEPS, "checkpoint__every": STEPS}
    train(small(root, record__name=ONE, **settings), console=quiet())
    shutil.rmtree(root / ONE / "checkpoints")
    (root / ONE / "alarms.jsonl").write_text('{"step":2,"text":"entropy fell to <b>half</b>"}\n')
    (root / ONE / SPANS_FILE).write_text("".join(map(spans_line, range(1, SPAN_STEPS + 1))))
    vary(root / ONE, root / TWO, ("seed = 0\n\n[env]", "seed = 1\n\n[env]"), reward=0.25)
    vary(root / ONE, root / OTHER, ("learning_rate = 0.001", "learning_rate = 0.005"), reward=-0.125)
    add_metrics(root / OTHER, CRITIC_METRICS)
    set_outcomes(root / OTHER, before=LOST, after=GAINED)
    write_run(
        root / HOSTILE, [nasty_row(0), nasty_row(1), row(2, [{"context_ids": [0], "action_ids": [1, 4]}]), seen_row(3)]
    )
    write_run(root / LONG, [long_row()])
    ImageStore(root / HOSTILE / "images").put(ONE_PIXEL)


def spans_line(step: int) -> str:
    """Return what two workers did in a step of 2 s: the loop waited half of it."""
    start = 1000.0 + 2 * step
    spans = [
        ["engine replica 0", "episodes", start, start + 1.5],
        [NASTY_LANE, f"step {step}", start, start + 1],
        ["training loop", "wait for rollouts", start, start + 1],
        ["training loop", "update", start + 1, start + 2],
    ]
    return json.dumps({"step": step, "spans": spans}) + "\n"


def vary(path: Path, copy: Path, setting: tuple[str, str], reward: float) -> None:
    """Copy a run with another setting and other numbers, which is faster than training it."""
    shutil.copytree(path, copy)
    config = copy / "config.toml"
    assert setting[0] in config.read_text()
    config.write_text(config.read_text().replace(*setting))
    rows = RunFolder.open(path).read_metrics()
    for each in rows:
        for name in ("rollout/reward", "train/entropy"):
            each |= {name: each[name] + reward} if name in each else {}
    (copy / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))


def add_metrics(path: Path, metrics: Mapping[str, float]) -> None:
    """Add metrics to the training steps of a run."""
    rows = RunFolder.open(path).read_metrics()
    changed = [each | metrics if "rollout/success" in each else each for each in rows]
    (path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in changed))


def set_outcomes(path: Path, **solved: Sequence[int]) -> None:
    """Let a run solve only the tasks with these numbers in its evaluations before and after training."""
    folder = RunFolder.open(path)
    rows = {name: [folder.read_trajectory(entry) for entry in folder.read_index(name)] for name in solved}
    kept = [
        line for line in folder.index_path.read_text().splitlines() if json.loads(line).get("evaluation") not in rows
    ]
    folder.index_path.write_text("".join(f"{line}\n" for line in kept))
    with RunFolder.open(path, writing=True) as changed:
        for name, episodes in rows.items():
            step = episodes[0]["step"]
            changed.trajectories_path(step, name).unlink()
            outcomes = ["succeeded" if each["group"] in solved[name] else "truncated_turns" for each in episodes]
            ended = [each | {"status": status} for each, status in zip(episodes, outcomes, strict=True)]
            changed.write_trajectories(step, ended, lambda each: TokenName(id=each, text="", special=False), name)


def write_run(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    config = '[env]\nkind = "<script>window.ran=1</script>"\n[model]\nname = "<img src=x onerror=window.ran=1>"\n'
    texts = {0: "<|end|>", 1: "<script>", 2: " \u202ea", 3: "\x1b[0m", 4: "漢", 5: "\n"}
    with RunFolder.create(path, config) as folder:
        metrics = {"success": 0.5, "<img src=x onerror=window.ran=1>": 1.0}
        folder.append_metrics(StepRecord(step=1, source=EpisodeSource.PLAYED, rollout=metrics))
        folder.write_trajectories(1, rows, lambda each: TokenName(id=each, text=texts[each], special=each == 0))


def nasty_row(member: int) -> dict[str, Any]:
    """Return an episode whose first context has two images, one of them without its file."""
    spans = [{"hash": name, "start": 0, "end": 1} for name in (image_hash(ONE_PIXEL), "0" * 32)]
    first = turn([0, 1, 2, 3], extends=False) | {"images": spans}
    return row(member, [first, turn([4, 5, 1], extends=False)])


def seen_row(member: int) -> dict[str, Any]:
    """Return an episode whose context has an image of two tokens among its text."""
    key = image_hash(ONE_PIXEL)
    ids = [0, 4, image_token_id(key, 0), image_token_id(key, 1), 4]
    seen = {"context": "<|end|>漢<|image_pad|>漢", "context_ids": ids, "images": [{"hash": key, "start": 2, "end": 4}]}
    return row(member, [turn([1, 2], extends=False) | seen])


def long_row() -> dict[str, Any]:
    return row(0, [turn([1 + place % 5 for place in range(LONG_TOKENS)], extends=False)])


def row(member: int, turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "step": 1,
        "group": 0,
        "member": member,
        "attempt": 0,
        "task": {"env": "<script>window.ran=1</script>", "seed": 7, "split": "train", "params": {}},
        "status": "failed",
        "reward": -1.0,
        "tokens": sum(len(each["action_ids"]) for each in turns),
        "rewards": {"<b>env</b>": -1.0},
        "timings": {},
        "start": None,
        "turns": turns,
    }


def turn(ids: Sequence[int], *, extends: bool) -> dict[str, Any]:
    numbers = [-0.001 * (place % 1000) for place in range(len(ids))]
    return {
        "context": NASTY,
        "context_ids": [0, 1, 4],
        "extends": extends,
        "action_ids": list(ids),
        "action_logprobs": numbers,
        "advantages": [(-1) ** place * 0.5 for place in range(len(ids))],
        "learner_logprobs": None,
        "entropies": None,
        "loss_mask": [place % 2 == 0 for place in range(len(ids))],
        "temperature": 1.0,
        "policy_version": 0,
        "stop": "eos",
        "spans": [],
        "message": {"role": "assistant", "content": f"<think>{NASTY}</think><answer>Left</answer>"},
        "reward": 0.0,
        "turn_reward": -1.0,
        "invalid": True,
        "info": {"note": NASTY},
        "picture": None,
    }


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """Serve the folder from a thread and yield the address."""
    from turnwise.viewer.access import AccessPolicy
    from turnwise.viewer.api import make_app

    with serving_app(lambda port: make_app(root, AccessPolicy(host="127.0.0.1", port=port, token=None))) as address:
        yield address


class Viewer(OpenedPage):
    """A page of the viewer over a folder of runs."""

    def __init__(self, page: "Page", root: Path, address: str) -> None:
        super().__init__(page, address)
        self.root = root

    def metrics(self, run: str) -> list[dict[str, Any]]:
        return RunFolder.open(self.root / run).read_metrics()

    def trajectories(self, run: str, evaluation: str | None = None) -> dict[int, dict[str, Any]]:
        """Return the trajectories of training or of an evaluation by their number, their line in the index."""
        folder = RunFolder.open(self.root / run)
        lines = [json.loads(line) for line in folder.index_path.read_bytes().splitlines()]
        chosen = [(number, each) for number, each in enumerate(lines) if each.get("evaluation") == evaluation]
        return {number: folder.read_trajectory(entry) for number, entry in chosen}
