"""Models that vLLM runs on a CPU, engines over them, and comparisons with the model."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.core.protocols import Completion
from turnwise.core.task import EpisodeKey, Task
from turnwise.engine.engines import Vllm
from turnwise.engine.options import EngineOptions
from turnwise.engine.vllm.engine import VllmEngine
from turnwise.models.loading import tiny
from turnwise.render.renderer import Renderer

TINY_CONFIG = tiny.tiny_config


def wide_config() -> LlamaConfig:
    """Return tiny's configuration with heads of size 32: vLLM's attention on a CPU has none of size 16."""
    config = TINY_CONFIG()
    config.head_dim, config.num_attention_heads, config.num_key_value_heads = 32, 4, 2
    return config


def wide_model(seed: int) -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(wide_config()).eval()


def key(member: int = 0) -> EpisodeKey:
    return EpisodeKey(run_seed=0, round=0, task=Task(env="test", seed=4), member=member)


def renderer() -> Renderer:
    tokenizer = tiny.tiny_tokenizer()
    return Renderer(tokenizer, (tokenizer.eos_token_id,), "")


def build_engine(model: Any, render: Renderer | None = None, **settings: Any) -> VllmEngine:
    options = EngineOptions(slots=16, max_tokens=1024)
    engine = Vllm(**settings).build(model, render or renderer(), options)
    assert isinstance(engine, VllmEngine)
    return engine


@torch.no_grad()
def max_error(model: Any, context: list[int], found: Completion, tokens: slice = slice(None)) -> float:
    """Return the largest difference of log-probabilities to those of the model, over some of the tokens."""
    logits = model(torch.tensor([[*context, *found.ids]])).logits[0, len(context) - 1 : -1].float()
    logprobs = (logits / found.temperature).log_softmax(dim=-1)
    expected = logprobs.gather(1, torch.tensor(found.ids)[:, None])[:, 0]
    return float((expected - torch.tensor(found.logprobs))[tokens].abs().max())
