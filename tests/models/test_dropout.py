import torch
from torch import nn
from transformers import LlamaConfig

from turnwise.models.loading.pretrained import remove_dropout_from_config, remove_dropout_from_modules


class Layer(nn.Module):
    """Both habits: a dropout layer, and a probability kept as a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.resid = nn.Dropout(0.4)
        self.attention_dropout = 0.3
        self.scaling = 0.25


def test_layers_and_plain_numbers_are_zeroed_and_nothing_else() -> None:
    model = nn.Sequential(Layer(), Layer(), nn.AlphaDropout(0.2))
    remove_dropout_from_modules(model)
    assert [module.p for module in model.modules() if isinstance(module, (nn.Dropout, nn.AlphaDropout))] == [0, 0, 0]
    assert [(layer.attention_dropout, layer.scaling) for layer in model[:2]] == [(0.0, 0.25)] * 2
    assert torch.equal(model[2].train()(torch.ones(100)), torch.ones(100))


def test_nested_configurations_are_zeroed_and_other_numbers_stay() -> None:
    inner = LlamaConfig(attention_dropout=0.1)
    outer = LlamaConfig(attention_dropout=0.2, rms_norm_eps=0.5)
    outer.text_config = inner
    outer.embd_pdrop = 0.3
    remove_dropout_from_config(outer)
    assert (outer.attention_dropout, outer.embd_pdrop, inner.attention_dropout) == (0.0, 0.0, 0.0)
    assert outer.rms_norm_eps == 0.5
