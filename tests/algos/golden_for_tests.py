"""The golden file: its arrays as tensors, and how a number is compared with a record's."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DEFAULT = Path(__file__).parent.parent / "data" / "golden" / "public.json"
GOLDEN = json.loads(Path(os.environ.get("TURNWISE_GOLDEN") or DEFAULT).read_text())

Arrays = dict[str, Tensor]
Record = dict[str, Any]


def as_tensor(name: str, array: list[Any]) -> Tensor:
    """Floats are float64, 0/1 masks bool; ids of any type become integers of the same order."""
    if name.endswith("_ids") or name == "tags":
        number = {value: index for index, value in enumerate(sorted(set(array)))}
        return torch.tensor([number[value] for value in array])
    kinds = {"mask": torch.bool, "turn_end": torch.bool, "turn_id": torch.int64}
    return torch.tensor(array, dtype=kinds.get(name, torch.float64))


def arrays_of(record: Record) -> Arrays:
    """What the record names, overridden by what it brings."""
    found = dict(GOLDEN["batches"][record["batch"]]) if "batch" in record else {}
    found |= GOLDEN["steps"][record["steps"]] if "steps" in record else {}
    return {name: as_tensor(name, array) for name, array in (found | record.get("inputs", {})).items()}


def close(record: Record, got: Any, expected: Any, name: str) -> None:
    tolerance = GOLDEN["tolerances"][GOLDEN["algos"][record["algo"]]["tol"]]
    got, expected = (torch.as_tensor(side, dtype=torch.float64) for side in (got, expected))
    torch.testing.assert_close(got, expected, **tolerance, msg=lambda text: f"{record['id']} {name}: {text}")


def close_all(record: Record, got: dict[str, Any]) -> None:
    """Every expected value must be among those computed: a key that is not known here is an error."""
    for name, expected in record["expected"].items():
        close(record, got[name], expected, name)
