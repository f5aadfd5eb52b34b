"""Settings as keywords of the Python API: `algo__advantage` is algo.advantage."""

from collections.abc import Mapping
from typing import Any

from turnwise.config.keys import choice_of, find_key, in_free_table
from turnwise.settings.choice import KIND, Choice
from turnwise.user_code.references import is_reference, reference_to

RUN = {"seed": "seed", "record.name": "name", "model.name": "model"}
KEYWORDS: dict[str, dict[str, str]] = {
    "tw.train": RUN | {"train.steps": "steps", "train.max_minutes": "max_minutes"},
    "tw.sft": RUN | {"sft.count": "count", "sft.epochs": "epochs", "train.max_minutes": "max_minutes"},
    "tw.evaluate": {"eval.episodes": "episodes", "eval.temperature": "temperature", "eval.split": "split"},
    "tw.Trainer": RUN | {"train.steps": "steps", "algo.advantage": "algo"},
}
"""Settings that a function has its own keyword for."""


def dotted_settings(settings: Mapping[str, Any], keywords: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings by their dotted names. An unknown one raises UserError with the keyword that may be meant."""
    dotted = {name.replace("__", "."): _with_references(value) for name, value in settings.items()}
    for key in dotted:
        parent = key.rpartition(".")[0]
        if not in_free_table(key) and not (choice_of(parent) and is_reference(dotted.get(parent))):
            find_key(key, spell=lambda setting: keywords.get(setting, setting.replace(".", "__")))
    return dotted


def _with_references(value: Any) -> Any:
    """Replace classes and functions by their references, and an alternative such as `tw.Loss` by its table."""
    if isinstance(value, Choice):
        return {**value.model_dump(), KIND: value.kind or reference_to(type(value))}
    if isinstance(value, Mapping):
        return {key: _with_references(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_references(item) for item in value]
    return reference_to(value) if callable(value) else value
