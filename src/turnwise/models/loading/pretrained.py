"""Reads a model and its tokenizer with transformers; whatever is wrong with them becomes one line with the mend."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from turnwise.core.errors import UserError

GGUF_MAGIC = b"GGUF"
GGUF_PACKAGES = ("gguf", "accelerate")


def read_folder(folder: Path, *, dtype: torch.dtype, attn_implementation: str) -> tuple[Any, Any]:
    """(model, tokenizer) of a Hugging Face folder."""
    if not (folder / "config.json").is_file():
        run = " (a run folder? turnwise export makes a model of it)" if (folder / "checkpoints").is_dir() else ""
        raise UserError(f"{folder} is no model folder, it has no config.json{run}: give one that save or export wrote")
    with quiet_transformers():
        return _read(str(folder), str(folder), dtype, attn_implementation, {"local_files_only": True})


def read_hub(name: str, *, online: bool, dtype: torch.dtype, attn_implementation: str) -> tuple[Any, Any]:
    """(model, tokenizer) of a hub name; downloads show their progress bars."""
    with quiet_transformers(progress_bars=True):
        return _read(name, name, dtype, attn_implementation, {"local_files_only": not online})


def read_gguf(file: Path, *, dtype: torch.dtype, attn_implementation: str) -> tuple[Any, Any]:
    """(model, tokenizer) of a GGUF file, its weights unpacked so that they can be trained."""
    if not file.is_file():
        raise UserError(f"no file {file}: give the path of a .gguf file")
    if missing := [package for package in GGUF_PACKAGES if find_spec(package) is None]:
        raise UserError(f"reading GGUF files needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    with file.open("rb") as opened:
        if opened.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise UserError(f"{file} is no GGUF file, or a damaged one: download it again")
    options = {"gguf_file": file.name, "local_files_only": True}
    unpack = {"quantization_config": GgufConfig(dequantize=True)}
    with quiet_transformers(), redirect_stderr(io.StringIO()):  # the GGUF reader's bar has no switch
        return _read(str(file.parent), str(file), dtype, attn_implementation, options, unpack)


def _read(
    where: str,
    called: str,
    dtype: torch.dtype,
    attn_implementation: str,
    options: dict[str, Any],
    weight_options: dict[str, Any] | None = None,
) -> tuple[Any, Any]:
    options = {**options, "trust_remote_code": False}  # a model is data: code that comes with it never runs
    with _user_errors(called, "configuration", "give another model, or fetch this one again"):
        config = AutoConfig.from_pretrained(where, **options)
    _check_architecture(config, called)
    remove_dropout_from_config(config)
    with _user_errors(called, "tokenizer", "give a model whose tokenizer is complete"):
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
    with _user_errors(called, "weights", "fetch or save it again"):
        model, report = AutoModelForCausalLM.from_pretrained(
            where,
            config=config,
            dtype=dtype,
            attn_implementation=attn_implementation,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
            **(weight_options or {}),
        )
    _check_complete(report, called)
    return model, tokenizer


def _check_complete(report: dict[str, Any], called: str) -> None:
    """transformers fills what it does not find with random numbers and goes on."""
    absent = sorted(report["missing_keys"])
    misshapen = sorted(name for name, *_ in report["mismatched_keys"])
    for names, what in ((absent, "are missing"), (misshapen, "have another shape than its configuration says")):
        if names:
            others = f" and {len(names) - 1} others" if len(names) > 1 else ""
            raise UserError(f'weights of model "{called}" {what} ({names[0]}{others}): fetch or save it again')


def _check_architecture(config: Any, called: str) -> None:
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise _not_causal(called, config.model_type)
    classes = _causal_classes()
    if config.architectures and not any(name in classes for name in config.architectures):
        raise _not_causal(called, config.architectures[0])
    if getattr(config, "quantization_config", None) is not None:  # a field of quantised models only
        raise UserError(f'model "{called}" is quantised, which cannot be trained: give the plain model')


def _causal_classes() -> set[str]:
    """Names of all classes that generate from left to right; the table holds names or tuples of them."""
    classes: set[str] = set()
    for entry in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        classes.update([entry] if isinstance(entry, str) else entry)
    return classes


def _not_causal(called: str, kind: str) -> UserError:
    return UserError(f'model "{called}" is a {kind}, no causal language model: give one that generates text')


@contextmanager
def _user_errors(called: str, part: str, mend: str) -> Iterator[None]:
    """The boundary to other people's files: a damaged one can fail anywhere in the readers, with any exception."""
    try:
        yield
    except SafetensorError as error:
        raise UserError(f'the weights of model "{called}" are damaged or half-written: {mend}') from error
    except Exception as error:
        raise UserError(f'the {part} of model "{called}" cannot be read ({_first_line(error)}): {mend}') from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


@contextmanager
def quiet_transformers(*, progress_bars: bool = False) -> Iterator[None]:
    """`progress_bars`: leave them as they are, for downloads."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress_bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


DROPOUT_MODULES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def remove_dropout_from_config(config: Any) -> None:
    """Every probability of a configuration, those of nested configurations included."""
    for name, value in vars(config).items():
        if isinstance(value, float) and _is_dropout(name):
            setattr(config, name, 0.0)
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            remove_dropout_from_config(value)


def remove_dropout_from_modules(model: nn.Module) -> None:
    """Dropout layers, and the probabilities that attention layers keep as plain attributes."""
    for module in model.modules():
        if isinstance(module, DROPOUT_MODULES):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and _is_dropout(name):
                setattr(module, name, 0.0)


def _is_dropout(name: str) -> bool:
    """The names in use: attention_dropout, resid_pdrop, activation_dropout, layerdrop, dropout_rate."""
    return "drop" in name.lower()
