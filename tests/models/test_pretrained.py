"""Silence of transformers, and removal of dropout."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.utils import logging

from turnwise.models.loading.pretrained import (
    quiet_transformers,
    remove_dropout_from_config,
    remove_dropout_from_modules,
)


def state() -> tuple[int, bool]:
    return logging.get_verbosity(), logging.is_progress_bar_enabled()


def test_quiet_transformers_restores_verbosity_and_bars() -> None:
    before = state()
    with pytest.raises(KeyError), quiet_transformers():
        assert state() == (logging.ERROR, False)
        raise KeyError
    assert state() == before


def test_quiet_transformers_can_keep_progress_bars() -> None:
    logging.enable_progress_bar()
    with quiet_transformers(progress_bars=True):
        assert state() == (logging.ERROR, True)


def test_quiet_transformers_leaves_disabled_bars_disabled() -> None:
    logging.disable_progress_bar()
    try:
        with quiet_transformers():
            pass
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.enable_progress_bar()


class Layer(nn.Module):
    """Both variants: a dropout module, and a probability kept as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.resid = nn.Dropout(0.4)
        self.attention_dropout = 0.3
        self.scaling = 0.25


def test_remove_dropout_from_modules() -> None:
    model = nn.Sequential(Layer(), Layer(), nn.AlphaDropout(0.2))
    remove_dropout_from_modules(model)
    assert [module.p for module in model.modules() if isinstance(module, (nn.Dropout, nn.AlphaDropout))] == [0, 0, 0]
    assert [(layer.attention_dropout, layer.scaling) for layer in model[:2]] == [(0.0, 0.25)] * 2
    assert torch.equal(model[2].train()(torch.ones(100)), torch.ones(100))


def test_remove_dropout_from_nested_configs() -> None:
    inner = LlamaConfig(attention_dropout=0.1)
    outer = LlamaConfig(attention_dropout=0.2, rms_norm_eps=0.5)
    outer.text_config = inner
    outer.embd_pdrop = 0.3
    remove_dropout_from_config(outer)
    assert (outer.attention_dropout, outer.embd_pdrop, inner.attention_dropout) == (0.0, 0.0, 0.0)
    assert outer.rms_norm_eps == 0.5
