"""`turnwise serve --tinker`: the training service, with Tinker's API."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from turnwise.config.load import Overrides, build, to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import UserError, read_failure
from turnwise.core.protocols import Engine
from turnwise.files.disk import wrap_disk_errors
from turnwise.gateway.http_server import wait_for_stop
from turnwise.models.loading.load import LoadedModel
from turnwise.network.http_headers import is_local
from turnwise.run.build import build_engine, build_renderer
from turnwise.run.load_policy import model_loader
from turnwise.run.resources import check_threads, default_threads
from turnwise.service.tinker.adapters import ALPHA
from turnwise.service.tinker.backend import BaseModel
from turnwise.service.tinker.server import TinkerServer
from turnwise.service.tinker.service import Service
from turnwise.service.tinker.trained_model import ModelSpec

SECTIONS = ("model", "rollout", "engine", "system")
"""Sections that the command reads."""
FOLDER = Path("runs/tinker")
KEY_FILE = "api_key"
KEY_PREFIX = "tml-"
"""Tinker's SDK takes no other keys."""
MAX_TOKENS = 8192
"""Longest context unless rollout.max_tokens is set; less if the model has fewer positions."""
MAX_MODELS = 16
TENANT = "default"


def serve_tinker(
    overrides: Overrides,
    *,
    host: str,
    port: int,
    api_key: str | None,
    keys: Path | None,
    folder: Path | None,
    write: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C. A restarted server continues with the same folder."""
    folder = (folder or FOLDER).absolute()
    config = build({}, overrides)
    with wrap_disk_errors(folder, "start again, or choose another folder with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        owners = read_keys(folder, api_key, keys)
    if keys is None and api_key is not None and not is_local(host):
        logging.getLogger("turnwise").warning("The API key protects this server: send it over HTTPS only.")
    base, tokenizer_id = build_base_model(config, overrides, folder)
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
        asyncio.run(_serve(Service(base, folder, tokenizer_id), owners, host, port, write))


async def _serve(
    service: Service, owners: Mapping[str, str], host: str, port: int, write: Callable[[str], None]
) -> None:
    async with TinkerServer(service, owners, host=host, port=port) as server:
        write(f"export TINKER_BASE_URL={server.url}")
        for name, key in owners.items():
            write(f"export TINKER_API_KEY={key}" + (f"  # {name}" if len(owners) > 1 else ""))
        write(f'serving "{service.base.name}"  (Ctrl-C to stop)')
        await wait_for_stop()


def read_keys(folder: Path, api_key: str | None, keys: Path | None) -> dict[str, str]:
    """Return the API key of each tenant; one without a given key gets a random one that is kept in the folder."""
    if keys is not None:
        if api_key is not None:
            raise UserError("--api-key and --keys exclude each other: add the key to the file as NAME=KEY.")
        return _read_key_file(keys)
    if api_key is None:
        path = folder / KEY_FILE
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(f"{KEY_PREFIX}{secrets.token_urlsafe(24)}\n")
        api_key = path.read_text().strip()
    return {TENANT: _check_key(api_key, "--api-key")}


def _read_key_file(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--keys {read_failure(path, error)}: give a file with lines NAME=KEY.") from error
    owners = dict[str, str]()
    for number, line in enumerate(lines, start=1):
        name, separator, key = (part.strip() for part in line.partition("="))
        if not line.strip():
            continue
        if not separator or not name or name in owners or key in owners.values():
            raise UserError(f"--keys {path} line {number} must be NAME=KEY, with a name and a key of its own.")
        owners[name] = _check_key(key, f"--keys {path} line {number}")
    if not owners:
        raise UserError(f"--keys {path} has no key: add lines NAME=KEY.")
    return owners


def _check_key(key: str, where: str) -> str:
    if not key.startswith(KEY_PREFIX) or len(key) < len(KEY_PREFIX) + 8:
        raise UserError(f"{where} must start with {KEY_PREFIX} and 8 more characters, as Tinker's SDK requires.")
    return key


def build_base_model(config: Config, overrides: Overrides, folder: Path) -> tuple[BaseModel, str]:
    """Return the model that is served, and where clients find its tokenizer."""
    check_threads(config.system)
    torch.set_num_threads(config.system.threads or default_threads())
    load = model_loader(config.model)
    loaded = load(config.model.name)
    if loaded.images is not None:
        raise UserError(f"{config.model.name} reads images, which serve --tinker does not offer: use a language model.")
    positions = getattr(loaded.model.config, "max_position_embeddings", None) or MAX_TOKENS
    is_set = any(key.replace("-", "_") == "rollout.max_tokens" for key, _ in overrides)
    max_tokens = min(config.rollout.max_tokens if is_set else MAX_TOKENS, positions)
    rollout = config.rollout.model_copy(update={"max_tokens": max_tokens})
    renderer = build_renderer(rollout, loaded)

    def make_engine(model: Any) -> Engine:
        return build_engine(config.engine, rollout, model, renderer)

    def describe(spec: ModelSpec) -> str:
        rank = 0 if spec.shape is None else spec.shape.rank
        lora = config.lora.model_copy(update={"rank": rank, "alpha": ALPHA if rank else None})
        return to_toml(config.model_copy(update={"lora": lora, "rollout": rollout}))

    base = BaseModel(
        name=config.model.name,
        loaded=replace(loaded, name=config.model.name),
        load_copy=lambda: load(config.model.name).model,
        make_engine=make_engine,
        max_tokens=max_tokens,
        max_models=MAX_MODELS,
        config_toml=describe,
    )
    return base, _save_tokenizer(loaded, folder)


def _save_tokenizer(loaded: LoadedModel, folder: Path) -> str:
    """Return the tokenizer's name on the hub, or a folder with it for clients on this machine."""
    if "/" in loaded.name and not Path(loaded.name).expanduser().exists():
        return loaded.name
    loaded.tokenizer.save_pretrained(folder / "tokenizer")
    return str(folder / "tokenizer")
