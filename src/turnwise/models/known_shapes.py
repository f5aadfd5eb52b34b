"""The configuration of a model by its name, without its weights; those that papers train are known without a hub."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from turnwise.core.errors import UserError
from turnwise.core.suggestions import nearest
from turnwise.models.catalogue import TINY
from turnwise.models.hub import hub_answers, is_hub_name
from turnwise.models.lora import base_of, is_adapter
from turnwise.models.quiet import quiet_transformers
from turnwise.models.tiny import tiny_config

COLUMNS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
KNOWN: dict[str, tuple[str, tuple[int, ...]]] = {
    "smollm2-135m": ("llama", (576, 1536, 30, 9, 3, 49152, True)),
    "smollm2-360m": ("llama", (960, 2560, 32, 15, 5, 49152, True)),
    "smollm2-1.7b": ("llama", (2048, 8192, 24, 32, 32, 49152, True)),
    "qwen2.5-0.5b": ("qwen2", (896, 4864, 24, 14, 2, 151936, True)),
    "qwen2.5-1.5b": ("qwen2", (1536, 8960, 28, 12, 2, 151936, True)),
    "qwen2.5-3b": ("qwen2", (2048, 11008, 36, 16, 2, 151936, True)),
    "qwen2.5-7b": ("qwen2", (3584, 18944, 28, 28, 4, 152064, False)),
    "llama-3.2-1b": ("llama", (2048, 8192, 16, 32, 8, 128256, True)),
    "llama-3.2-3b": ("llama", (3072, 8192, 28, 24, 8, 128256, True)),
}
"""Name -> (transformers' kind of model, its numbers by COLUMNS)."""


def config_of(name: str) -> Any:
    """Of tiny, of a model in KNOWN, of a folder, or of a name on the hub."""
    if name == TINY:
        return tiny_config()
    path = Path(name).expanduser()
    if name and is_adapter(path):
        return config_of(base_of(path))
    if (path / "config.json").is_file():
        return _read(str(path), local=True)
    if short_name(name) in KNOWN or not is_hub_name(name):
        return known_config(name)
    return _read(name, local=not hub_answers(name))


def known_config(name: str) -> Any:
    """Of a model in KNOWN, by its short name or its name on the hub; an unknown one is an error with the nearest."""
    short = short_name(name)
    if short not in KNOWN:
        raise UserError(f'the shape of "{name}" is not known:{nearest(short, KNOWN)} (or give a folder, or owner/name)')
    kind, numbers = KNOWN[short]
    return AutoConfig.for_model(kind, **dict(zip(COLUMNS, numbers, strict=True)))


def short_name(name: str) -> str:
    """Qwen/Qwen2.5-7B-Instruct -> qwen2.5-7b"""
    return name.lower().rpartition("/")[2].removesuffix("-instruct")


def _read(where: str, *, local: bool) -> Any:
    """The boundary to other people's files: a damaged one can fail anywhere in the readers, with any exception."""
    try:
        with quiet_transformers():
            return AutoConfig.from_pretrained(where, local_files_only=local, trust_remote_code=False)
    except Exception as error:
        raise UserError(
            f'the configuration of model "{where}" cannot be read ({type(error).__name__}): give another'
        ) from error
