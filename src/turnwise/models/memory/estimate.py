"""Memory that training a model needs, in bytes, calibrated against a measurement.

SmolLM2-135M, compiled, all tokens sampled: 22.1 GiB at 32,768 tokens per pass, 37.8 GiB at 65,536 (H200, torch 2.11).
Weights, gradients and optimizer states are 2.3 GiB of it. So a token keeps 514,458 bytes, which the tensors saved per
layer account for (`layer_bytes`), and the logits take 4.1 GiB during their backward pass: `LOGITS_GRADIENT_COPIES` of a
chunk plus the gradient of the output layer.
"""

from dataclasses import dataclass

from turnwise.models.head import chunk_rows
from turnwise.models.memory.shapes import ModelShape

GIB = 1 << 30
CUDA_CONTEXT = 6 * GIB // 10
"""Of CUDA and its libraries, outside of what torch allocates."""
CUDA_GRAPHS = GIB // 2
"""Of captured graphs themselves, beside what they compute in."""
LOGITS_GRADIENT_COPIES = 4
"""Of a chunk's float32 logits, at the worst moment of their gradient."""
VECTORS_AFTER_LAYERS = 6
"""Hidden vectors that a token keeps after the last layer."""
EAGER_FACTOR = 2
"""What layers that are not compiled keep, beside compiled ones."""
DECODE_LOGITS_COPIES = 3
"""Of the logits of one decoding step."""
OFFLOAD_CHUNK = 1 << 26
"""Numbers that travel at once between the device and optimiser states on the host; a larger parameter travels alone."""
FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Of one model. `compiled`: its layers are."""

    shape: ModelShape
    compiled: bool = True

    @property
    def parameters(self) -> int:
        return self.shape.parameters * self.shape.number_bytes

    @property
    def trunk(self) -> int:
        return self.shape.trunk * self.shape.number_bytes

    def masters(self, trained: int, on_host: bool) -> int:
        """A parameter that is float32 already is its own master, where it lives with the optimiser."""
        return trained * FLOAT32_BYTES if on_host or self.shape.number_bytes < FLOAT32_BYTES else 0

    def moments(self, trained: int, muon: bool) -> int:
        """AdamW keeps two numbers of each parameter, Muon one of those in matrices."""
        return (2 * trained - (self.shape.matrices if muon else 0)) * FLOAT32_BYTES

    @property
    def layer_bytes(self) -> int:
        """Of one token in one layer, for its backward pass: about both norms' and residuals' vectors, queries, keys,
        values and what attention found, and three vectors of the feed-forward part.
        """
        shape = self.shape
        attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_size
        numbers = 4 * shape.hidden + 3 * shape.inner + attention
        return (EAGER_FACTOR if not self.compiled else 1) * (
            numbers * shape.number_bytes + shape.heads * FLOAT32_BYTES + 2 * FLOAT32_BYTES
        )

    def activations(self, tokens: int, recompute: bool) -> int:
        """What a forward pass keeps for the backward pass."""
        vector = self.shape.hidden * self.shape.number_bytes
        each = vector if recompute else self.layer_bytes
        return tokens * (self.shape.layers * each + VECTORS_AFTER_LAYERS * vector)

    def working(self, tokens: int, recompute: bool) -> int:
        """What comes and goes in a backward pass: logits and their gradient, then one layer after the other."""
        shape = self.shape
        table = 0 if shape.adapter else shape.vocabulary * shape.hidden * (FLOAT32_BYTES + shape.number_bytes)
        layer = tokens * self.layer_bytes
        return max(self.logits(tokens) + table + recompute * layer, (1 + recompute) * layer)

    def scoring(self, tokens: int) -> int:
        """What a forward pass without gradients works in."""
        return max(self.logits(tokens), tokens * self.layer_bytes)

    def logits(self, tokens: int) -> int:
        vocabulary = self.shape.vocabulary
        return LOGITS_GRADIENT_COPIES * min(tokens, chunk_rows(vocabulary)) * vocabulary * FLOAT32_BYTES

    def cached(self, tokens: int) -> int:
        """Keys and values of so many positions."""
        shape = self.shape
        return tokens * 2 * shape.layers * shape.kv_heads * shape.head_size * shape.number_bytes

    def graphs(self, prefill_tokens: int, rows: int) -> int:
        """What the engine's captured graphs hold: they work in memory of their own."""
        logits = DECODE_LOGITS_COPIES * rows * self.shape.vocabulary * FLOAT32_BYTES
        return CUDA_GRAPHS + max(prefill_tokens * self.layer_bytes, logits)

    def staging(self) -> int:
        """Of the host: where gradients arrive and parameters leave, two of each."""
        shape = self.shape
        return 2 * min(shape.trained, max(shape.largest, OFFLOAD_CHUNK)) * (FLOAT32_BYTES + shape.number_bytes)
