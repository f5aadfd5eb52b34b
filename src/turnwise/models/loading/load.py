"""Load a model and its tokenizer by name: catalogue, Hugging Face hub, model folder, adapter folder or GGUF file."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateSyntaxError

from turnwise.core.errors import UserError, read_failure
from turnwise.models.loading.catalogue import SMOLLM2, SMOLLM2_VISION, TINY, TINY_VLM, model_names
from turnwise.models.loading.cuda import require_cuda
from turnwise.models.loading.hub import is_hub_available, is_hub_name
from turnwise.models.loading.lora import base_model_of, has_adapter, load_adapter
from turnwise.models.loading.model_files import is_adapter
from turnwise.models.loading.pretrained import read_folder, read_gguf, read_hub, remove_dropout_from_modules
from turnwise.models.loading.smollm2 import smollm2_folder
from turnwise.models.loading.smollm2_vision import smollm2_vision_folder
from turnwise.models.loading.tiny import tiny_model, tiny_tokenizer, tiny_vlm_model, tiny_vlm_tokenizer
from turnwise.models.memory.host import configure_allocator
from turnwise.models.vision.architectures import attention_by_part
from turnwise.models.vision.encoder import freeze_vision, image_encoder
from turnwise.models.vision.processor import ImageProcessor
from turnwise.text.suggestions import suggest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A causal language model without dropout, in eval mode, and its tokenizer.

    All parameters are trainable but those of a vision tower, or only those of its adapter if it has one.
    """

    model: Any
    tokenizer: Any
    name: str
    stop_ids: tuple[int, ...]
    """Tokens that end a turn: those of the generation configuration and the tokenizer's end-of-sequence token."""

    @property
    def images(self) -> ImageProcessor | None:
        """Processor of a model that reads images."""
        encoder = image_encoder(self.model)
        return None if encoder is None else encoder.processor


def load_model(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    chat_template: str | None = None,
    attn_implementation: str = "sdpa",
    seed: int = 0,
    train_vision: bool = False,
) -> LoadedModel:
    """Load the model for training and generation.

    `name`: a catalogue name, a hub name (owner/name), a model folder, an adapter folder or a .gguf file.
    `chat_template`: a Jinja file to use instead of the tokenizer's template. `seed`: of tiny's untrained weights.
    `train_vision`: the vision tower and its projection are trainable too.
    """
    configure_allocator()
    target = resolve_device(device)
    torch_dtype = _dtype(dtype, target)
    template = None if chat_template is None else _read_template(chat_template)
    model, tokenizer = _read(name, torch_dtype, attn_implementation, seed)
    if template is not None:
        tokenizer.chat_template = template
    _check_template(tokenizer, name)
    remove_dropout_from_modules(model)
    model = model.to(target).eval()
    if not has_adapter(model):
        model.requires_grad_(True)
        if image_encoder(model) is not None and not train_vision:
            freeze_vision(model)
    return LoadedModel(model=model, tokenizer=tokenizer, name=name, stop_ids=_stop_ids(model, tokenizer))


def device_of(model: Any) -> torch.device:
    return model.get_input_embeddings().weight.device


def resolve_device(device: str) -> torch.device:
    """Return the torch device; "auto" is CUDA if available, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise UserError(f'Unknown device "{device}": use "auto", "cpu" or "cuda".') from error
    if resolved.type == "cuda":
        require_cuda(torch.cuda.is_available())
    return resolved


def _read(name: str, dtype: torch.dtype, attn_implementation: str, seed: int) -> tuple[Any, Any]:
    if name == TINY:
        model = tiny_model(seed).to(dtype)
        model.set_attn_implementation(attn_implementation)
        return model, tiny_tokenizer()
    if name == TINY_VLM:
        model = tiny_vlm_model(seed).to(dtype)
        model.set_attn_implementation(attention_by_part(attn_implementation))
        return model, tiny_vlm_tokenizer()
    if name == SMOLLM2:
        return read_folder(smollm2_folder(), dtype=dtype, attn_implementation=attn_implementation)
    if name == SMOLLM2_VISION:
        return read_folder(smollm2_vision_folder(), dtype=dtype, attn_implementation=attn_implementation)
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        return read_gguf(path, dtype=dtype, attn_implementation=attn_implementation)
    if name and is_adapter(path):
        model, tokenizer = _read(base_model_of(path), dtype, attn_implementation, seed)
        load_adapter(model, path)
        return model, tokenizer
    if name and path.is_dir():
        return read_folder(path, dtype=dtype, attn_implementation=attn_implementation)
    if _is_path(name):
        raise UserError(f"No model folder {name}: use an existing folder, a hub name (owner/name) or a .gguf file.")
    if not is_hub_name(name):
        raise UserError(
            f'Unknown model "{name}":{suggest(name, model_names())} '
            "(or use a hub name (owner/name), a folder or a .gguf file)."
        )
    return read_hub(name, online=is_hub_available(name), dtype=dtype, attn_implementation=attn_implementation)


def _is_path(name: str) -> bool:
    return name.startswith((".", "~", os.sep)) or name.count("/") > 1 or (bool(name) and Path(name).exists())


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise UserError(f'Unknown dtype "{name}":{suggest(name, DTYPES)}')
    return DTYPES[name]


def _read_template(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The chat template {read_failure(Path(file), error)}: pass a Jinja file.") from error


def _check_template(tokenizer: Any, name: str) -> None:
    """Raise for a missing or broken template now rather than in the first rollout."""
    if tokenizer.chat_template is None:
        raise UserError(
            f'The tokenizer of model "{name}" has no chat template: set model.chat_template to a file with one.'
        )
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    except TemplateSyntaxError as error:
        raise UserError(
            f'The chat template of model "{name}" is not valid Jinja ({error}): fix it or pass another.'
        ) from error


def _stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    eos = model.generation_config.eos_token_id
    stop_ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    if tokenizer.eos_token_id is not None:
        stop_ids.append(tokenizer.eos_token_id)
    return tuple(sorted(set(stop_ids)))
