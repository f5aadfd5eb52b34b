"""Weights on disk, by their tinker:// paths.

    tinker://MODEL/weights/NAME           weights and optimizer     FOLDER/MODEL/checkpoints/weights/NAME/
    tinker://MODEL/sampler_weights/NAME   weights for sampling      FOLDER/MODEL/checkpoints/sampler_weights/NAME/
    tinker://MODEL/external_weights/NAME  for other programs        FOLDER/MODEL/checkpoints/external_weights/NAME/

A folder has state.safetensors, or files for other programs, and info.json; it is written aside and renamed.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file, save_file
from torch import Tensor

from turnwise.files.disk import atomic_folder, remove_folder
from turnwise.service.tinker.adapters import LoraShape
from turnwise.service.tinker.errors import ApiError, RequestFailure
from turnwise.service.tinker.trained_model import ModelSpec

Kind = Literal["weights", "sampler_weights", "external_weights"]
KINDS: dict[str, str] = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
"""Kind -> `checkpoint_type` of the API."""
PATH = re.compile(
    r"tinker://([A-Za-z0-9:_-]{1,200})/(weights|sampler_weights|external_weights)/([A-Za-z0-9][A-Za-z0-9._-]{0,127})"
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
STATE_FILE, INFO_FILE = "state.safetensors", "info.json"
SESSION_PREFIX = "session-"
"""Of the names of weights that were saved for one sampler only."""
KEPT_SESSIONS = 16
"""Latest such weights of a model that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPath:
    model: str
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"tinker://{self.model}/{self.kind}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> "WeightsPath":
        """Raises ApiError."""
        match = PATH.fullmatch(text)
        if match is None:
            raise ApiError(400, f'"{text[:100]}" is not a path of weights: send tinker://MODEL/weights/NAME.')
        return cls(model=match[1], kind=match[2], name=match[3])  # type: ignore[arg-type]


def check_name(name: str) -> None:
    """Raise RequestFailure for a name that cannot be a folder's."""
    if NAME.fullmatch(name) is None or name.startswith(SESSION_PREFIX):
        raise RequestFailure(f'"{name[:100]}" cannot name weights: use letters, digits, "-", "_" and ".", 128 at most.')


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsInfo:
    """Contents of info.json."""

    spec: ModelSpec
    request: str
    """Id of the request that saved them."""
    time: str
    optimizer: bool
    metadata: dict[str, str] | None = None


class SavedWeights:
    """The weights of all models."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def model_folder(self, model: str) -> Path:
        return self._folder / model.replace(":", "-")

    def folder(self, path: WeightsPath) -> Path:
        return self.model_folder(path.model) / "checkpoints" / path.kind / path.name

    def save(self, path: WeightsPath, state: dict[str, Tensor], info: WeightsInfo, *, overwrite: bool = False) -> None:
        """Raises RequestFailure if another request saved weights of this name."""
        tensors = {name: tensor.contiguous() for name, tensor in state.items()}
        self.write(path, lambda folder: save_file(tensors, folder / STATE_FILE), info, overwrite=overwrite)

    def write(
        self, path: WeightsPath, write: Callable[[Path], None], info: WeightsInfo, *, overwrite: bool = False
    ) -> None:
        """Let `write` fill a new folder. Raises RequestFailure as `save` does."""
        folder = self.folder(path)
        if folder.exists():
            if self.info(path).request == info.request:
                return  # the server was killed after it had saved them
            if not overwrite:
                raise RequestFailure(f"{path} exists: choose another name.")
            remove_folder(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as aside:
            write(aside)
            (aside / INFO_FILE).write_text(json.dumps(asdict(info)))
        if path.name.startswith(SESSION_PREFIX):
            self._drop_sessions(folder.parent)

    def _drop_sessions(self, folder: Path) -> None:
        saved = sorted(folder.glob(f"{SESSION_PREFIX}*"), key=lambda path: path.stat().st_mtime_ns)
        for old in saved[:-KEPT_SESSIONS]:
            shutil.rmtree(old, ignore_errors=True)

    def info(self, path: WeightsPath) -> WeightsInfo:
        """Raises RequestFailure if there are no such weights."""
        try:
            fields: dict[str, Any] = json.loads((self.folder(path) / INFO_FILE).read_text())
        except FileNotFoundError:
            if path.name.startswith(SESSION_PREFIX):
                raise RequestFailure(
                    f"The weights of this sampler are gone: the latest {KEPT_SESSIONS} of a model are kept. "
                    "Call save_weights_for_sampler with a name to keep weights."
                ) from None
            raise RequestFailure(f"There are no weights {path}: list them with RestClient.list_checkpoints.") from None
        shape = fields["spec"]["shape"]
        spec = ModelSpec(shape=None if shape is None else LoraShape(**shape), seed=fields["spec"]["seed"])
        return WeightsInfo(**{**fields, "spec": spec})

    def load(self, path: WeightsPath) -> dict[str, Tensor]:
        self.info(path)
        if path.kind == "external_weights":
            raise RequestFailure(f"{path} is for other programs: load weights of save_state.")
        return load_file(self.folder(path) / STATE_FILE)

    def delete(self, path: WeightsPath) -> None:
        self.info(path)
        remove_folder(self.folder(path))

    def list(self, model: str) -> list[dict[str, Any]]:
        """Return the API's descriptions of a model's weights, oldest first, without those of single samplers."""
        paths = [
            WeightsPath(model=model, kind=kind, name=folder.name)  # type: ignore[arg-type]
            for kind in KINDS
            for folder in (self.model_folder(model) / "checkpoints" / kind).glob("*")
            if NAME.fullmatch(folder.name) and not folder.name.startswith(SESSION_PREFIX)
        ]
        described = [self._describe(path) for path in paths]
        return sorted(described, key=lambda checkpoint: str(checkpoint["time"]))

    def size(self, path: WeightsPath) -> int:
        return sum(file.stat().st_size for file in self.folder(path).rglob("*") if file.is_file())

    def _describe(self, path: WeightsPath) -> dict[str, Any]:
        info = self.info(path)
        return {
            "checkpoint_id": f"{path.kind}/{path.name}",
            "checkpoint_type": KINDS[path.kind],
            "time": info.time,
            "tinker_path": str(path),
            "size_bytes": self.size(path),
            "user_metadata": info.metadata,
        }


def now() -> str:
    return datetime.now(UTC).isoformat()


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
