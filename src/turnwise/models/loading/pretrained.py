"""Read models and tokenizers with transformers, without its output and without dropout.

Everything that is wrong with a file becomes a one-line UserError that says how to fix it. Dropout is set to 0 at load:
sampler and learner must compute the same function, and the code never toggles between train and eval mode.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, GgufConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)
from transformers.utils import logging

from turnwise.core.errors import UserError
from turnwise.models.loading.model_files import check_gguf, check_model_folder
from turnwise.models.vision.architectures import attention_by_part, check_vision_model, equip_model, read_processor
from turnwise.text.truncation import first_line

GGUF_PACKAGES = ("gguf", "accelerate")
DROPOUT_MODULES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def read_folder(folder: Path, *, dtype: torch.dtype, attn_implementation: str) -> tuple[Any, Any]:
    """Return (model, tokenizer) of a Hugging Face model folder."""
    check_model_folder(folder)
    with quiet_transformers():
        return _read(str(folder), str(folder), dtype, attn_implementation, {"local_files_only": True})


def read_hub(name: str, *, online: bool, dtype: torch.dtype, attn_implementation: str) -> tuple[Any, Any]:
    """Return (model, tokenizer) of a hub name. Downloads show progress bars."""
    with quiet_transformers(progress_bars=True):
        return _read(name, name, dtype, attn_implementation, {"local_files_only": not online})


def read_gguf(file: Path, *, dtype: torch.dtype, attn_implementation: str) -> tuple[Any, Any]:
    """Return (model, tokenizer) of a GGUF file, with dequantized weights that can be trained."""
    check_gguf(file)
    require_gguf()
    options = {"gguf_file": file.name, "local_files_only": True}
    dequantize = {"quantization_config": GgufConfig(dequantize=True)}
    # the GGUF reader's progress bar cannot be turned off
    with quiet_transformers(), redirect_stderr(io.StringIO()), _parse_gguf_once():
        return _read(str(file.parent), str(file), dtype, attn_implementation, options, dequantize)


@contextmanager
def _parse_gguf_once() -> Iterator[None]:
    """Let transformers share what it reads of a GGUF file for configuration, tokenizer and weights.

    It parses the file for each of them, and maps the names of all tensors for every module: half of the time.
    """
    import gguf

    names = ("GGUFReader", "get_tensor_name_map")
    originals = {name: getattr(gguf, name) for name in names}
    for name, original in originals.items():
        setattr(gguf, name, cache(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(gguf, name, original)


def require_gguf() -> None:
    """Raise unless the packages that read GGUF files are installed."""
    if missing := [package for package in GGUF_PACKAGES if find_spec(package) is None]:
        raise UserError(f"Reading GGUF files needs {' and '.join(missing)}: run `pip install 'turnwise[gguf]'`")


def _read(
    source: str,
    name: str,
    dtype: torch.dtype,
    attn_implementation: str,
    options: dict[str, Any],
    weight_options: dict[str, Any] | None = None,
) -> tuple[Any, Any]:
    options = {**options, "trust_remote_code": False}  # never run code that comes with a model
    with _user_errors(name, "configuration", "use another model, or download this one again"):
        config = AutoConfig.from_pretrained(source, **options)
    _check_architecture(config, name)
    remove_dropout_from_config(config)
    vision = reads_images(config)
    with _user_errors(name, "tokenizer", "use a model whose tokenizer is complete"):
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    loader = AutoModelForImageTextToText if vision else AutoModelForCausalLM
    with _user_errors(name, "weights", "download or save it again"):
        model, report = loader.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            attn_implementation=attention_by_part(attn_implementation) if vision else attn_implementation,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
            **(weight_options or {}),
        )
    _check_complete(report, name)
    _check_finite(model, name)
    if vision:
        with _user_errors(name, "image processor", "use a model folder with a preprocessor_config.json"):
            equip_model(model, read_processor(config, source, tokenizer, options))
    return model, tokenizer


def _check_complete(report: dict[str, Any], name: str) -> None:
    """Raise for missing weights, which transformers would initialize at random."""
    missing = sorted(report["missing_keys"])
    mismatched = sorted(key for key, *_ in report["mismatched_keys"])
    for keys, problem in ((missing, "are missing"), (mismatched, "do not have the shape in its configuration")):
        if keys:
            others = f" and {len(keys) - 1} others" if len(keys) > 1 else ""
            raise UserError(f'Weights of model "{name}" {problem} ({keys[0]}{others}): download or save it again.')


def _check_finite(model: nn.Module, name: str) -> None:
    """Raise for NaN and infinity, of which a damaged file or a diverged training is the cause."""
    for key, weights in model.named_parameters():
        if not weights.isfinite().all():
            raise UserError(f'Weights of model "{name}" are not finite ({key}): use an earlier checkpoint.')


def _check_architecture(config: Any, name: str) -> None:
    if reads_images(config):
        check_vision_model(config.model_type, name)
    elif config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise _not_causal(name, config.model_type)
    elif config.architectures and not any(architecture in _causal_classes() for architecture in config.architectures):
        raise _not_causal(name, config.architectures[0])
    if getattr(config, "quantization_config", None) is not None:  # only quantized models have this field
        raise UserError(f'Model "{name}" is quantized and cannot be trained: use the unquantized model.')


def reads_images(config: Any) -> bool:
    """Return whether the weights are those of a vision-language model. Some model types have classes of both kinds."""
    reads = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(config.model_type)
    return reads is not None and reads in (config.architectures or [reads])


def _causal_classes() -> set[str]:
    """Return the names of all causal LM classes; the table holds names or tuples of them."""
    classes: set[str] = set()
    for entry in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        classes.update([entry] if isinstance(entry, str) else entry)
    return classes


def _not_causal(name: str, architecture: str) -> UserError:
    return UserError(f'Model "{name}" is a {architecture}, not a causal language model: use one that generates text.')


@contextmanager
def _user_errors(name: str, part: str, fix: str) -> Iterator[None]:
    """Turn any exception into a UserError: a damaged file can fail anywhere in the readers, in any way."""
    try:
        yield
    except SafetensorError as error:
        raise UserError(f'The weights of model "{name}" are damaged or incomplete: {fix}') from error
    except Exception as error:
        raise UserError(f'Cannot read the {part} of model "{name}" ({first_line(error, 160)}): {fix}') from error


@contextmanager
def quiet_transformers(*, progress_bars: bool = False) -> Iterator[None]:
    """Silence transformers' reports and progress bars. `progress_bars`: keep the bars, for downloads."""
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


def remove_dropout_from_config(config: Any) -> None:
    """Set every dropout probability to 0, those of nested configurations included."""
    for name, value in vars(config).items():
        if isinstance(value, float) and _is_dropout(name):
            setattr(config, name, 0.0)
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            remove_dropout_from_config(value)


def remove_dropout_from_modules(model: nn.Module) -> None:
    """Set dropout modules to 0, and the probabilities that attention layers keep as plain attributes."""
    for module in model.modules():
        if isinstance(module, DROPOUT_MODULES):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and _is_dropout(name):
                setattr(module, name, 0.0)


def _is_dropout(name: str) -> bool:
    """Names in use: attention_dropout, resid_pdrop, activation_dropout, layerdrop, dropout_rate."""
    return "drop" in name.lower()
