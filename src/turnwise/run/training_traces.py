"""Episodes as OpenEnv's training traces, which TRL trains on: per turn the prompt, the sampled tokens and their mask.

    {"task": {...}, "reward": 1.0, "status": "succeeded", "trace": {"schema_version": 1, "turns": [
      {"node_id": "...", "prompt_token_ids": [...], "completion_token_ids": [...], "per_token_logps": [...],
       "loss_mask": [0, ..., 0, 1, ..., 1], "metadata": {"reward": 0.0}}]}}

The ids are those that were sampled: nothing is rendered or tokenized again.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.files.disk import atomic_folder
from turnwise.record.jsonl import encode_row

SCHEMA_VERSION = 1
FILE = "traces.jsonl"


def write_traces(rows: Iterator[tuple[str, Mapping[str, Any]]], to: Path) -> int:
    """Write the traces of trajectory rows into a new folder; return their number."""
    if to.exists():
        raise UserError(f"{to} already exists. Choose another folder, or remove it first.")
    count = 0
    with atomic_folder(to) as folder, (folder / FILE).open("wb") as file:
        for where, row in rows:
            try:
                file.write(encode_row(to_trace_row(row)) + b"\n")
            except (KeyError, TypeError) as error:
                raise UserError(f"{where} is not a trajectory ({error!r}). Restore the file from a copy.") from None
            except ValueError as error:
                raise UserError(f"{where} cannot be a training trace: {error}.") from None
            count += 1
    return count


def to_trace_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trace of a trajectory's row, with its task, reward and status."""
    episode = "-".join(str(row[name]) for name in ("step", "group", "member", "attempt"))
    turns, context = list[dict[str, Any]](), list[int]()
    for number, turn in enumerate(row["turns"]):
        prompt = [*(context if turn["extends"] else []), *turn["context_ids"]]
        context = prompt + turn["action_ids"]
        turns.append(_trace_turn(turn, f"{episode}-{number}", prompt))
    return {
        "task": row["task"],
        "reward": row["reward"],
        "status": row["status"],
        "trace": {"schema_version": SCHEMA_VERSION, "turns": turns},
    }


def _trace_turn(turn: Mapping[str, Any], node: str, prompt: list[int]) -> dict[str, Any]:
    sampled, logprobs = turn["action_ids"], turn["action_logprobs"]
    if any(token < 0 for token in prompt):
        raise ValueError("it contains images, which the format has no place for")
    if len(logprobs) != len(sampled) or any(logprob is None for logprob in logprobs):
        raise ValueError("a sampled token has no finite log-probability")
    return {
        "node_id": node,
        "prompt_token_ids": prompt,
        "completion_token_ids": sampled,
        "per_token_logps": logprobs,
        "loss_mask": [0] * len(prompt) + [1] * len(sampled),
        "metadata": {"reward": turn["turn_reward"], "temperature": turn["temperature"]},
    }
