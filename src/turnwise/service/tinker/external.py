"""Weights for other programs: a peft adapter or a Hugging Face model, downloaded file by file from signed addresses."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import peft
from safetensors.torch import save_file

from turnwise.models.loading.save import write_model
from turnwise.service.tinker.adapters import ALPHA
from turnwise.service.tinker.errors import ApiError
from turnwise.service.tinker.saved_weights import INFO_FILE, SavedWeights, WeightsPath
from turnwise.service.tinker.trained_model import TrainedModel

VALID_S = 3600
"""Seconds for which an address is valid."""
PEFT_PREFIX = "base_model.model."


def write_external(model: TrainedModel, base: str, tokenizer: Any, folder: Path) -> None:
    """Write an adapter as a peft folder that names its base model, or all weights as a Hugging Face folder."""
    shape = model.spec.shape
    if shape is None:
        write_model(model.model, tokenizer, folder)
        return
    weights = model.weights()
    targets = sorted({name.partition(".lora_")[0] for name in weights})
    config = peft.LoraConfig(
        r=shape.rank,
        lora_alpha=int(ALPHA),
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=True,
    )
    config.save_pretrained(str(folder))
    tensors = {f"{PEFT_PREFIX}{name}": value.contiguous() for name, value in weights.items()}
    save_file(tensors, folder / "adapter_model.safetensors")


class Downloads:
    """Signs addresses of files, so that they can be downloaded without a key. A restart makes them invalid."""

    def __init__(self, weights: SavedWeights) -> None:
        self._weights, self._secret = weights, secrets.token_bytes(32)

    def sign(self, path: WeightsPath, address: str) -> dict[str, Any]:
        """Return the API's list of addresses; `address`: of the route that serves them."""
        expires = int(time.time()) + VALID_S
        urls = {name: f"{address}?{urlencode(self._fields(path, name, expires))}" for name in self._files(path)}
        return {"urls": urls, "expires": datetime.fromtimestamp(expires, UTC).isoformat()}

    def _files(self, path: WeightsPath) -> Iterator[str]:
        folder = self._weights.folder(path)
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.name != INFO_FILE:
                yield file.relative_to(folder).as_posix()

    def _fields(self, path: WeightsPath, name: str, expires: int) -> dict[str, str]:
        signed = {"path": str(path), "file": name, "expires": str(expires)}
        digest = hmac.new(self._secret, urlencode(signed).encode(), hashlib.sha256).hexdigest()
        return {**signed, "signature": digest}

    def find(self, query: Mapping[str, str]) -> Path:
        """Return the file of a signed address. Raises ApiError."""
        path, name, expires = (query.get(field, "") for field in ("path", "file", "expires"))
        given = query.get("signature", "")
        signed = urlencode({"path": path, "file": name, "expires": expires}).encode()
        digest = hmac.new(self._secret, signed, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(digest.encode(), given.encode()) or int(expires) < time.time():
            raise ApiError(403, "The address is not valid or has expired: request new ones.")
        file = self._weights.folder(WeightsPath.parse(path)) / name
        if not file.is_file():
            raise ApiError(404, f"{path} has been deleted.")
        return file
