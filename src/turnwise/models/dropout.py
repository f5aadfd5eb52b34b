"""Dropout is set to 0 at load: sampler and learner must be the same function, and nobody toggles train and eval."""

from typing import Any

from torch import nn

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
