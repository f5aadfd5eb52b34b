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
"""Memory of CUDA and its libraries, outside of torch's allocator."""
CUDA_GRAPHS = GIB // 2
"""Memory of captured graphs themselves, besides their working memory."""
LOGITS_GRADIENT_COPIES = 4
"""Copies of a chunk's float32 logits at the peak of their backward pass."""
VECTORS_AFTER_LAYERS = 6
"""Hidden vectors that a token keeps after the last layer."""
EAGER_FACTOR = 2
"""Activations of uncompiled layers relative to compiled ones."""
DECODE_LOGITS_COPIES = 3
"""Copies of the logits of one decoding step."""
OFFLOAD_CHUNK = 1 << 26
"""Numbers per transfer between the device and optimizer states on the host; a larger parameter is transferred alone."""
FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory needs of one model."""

    shape: ModelShape
    compiled: bool = True
    """Whether its layers are compiled."""

    @property
    def parameters(self) -> int:
        return self.shape.parameters * self.shape.parameter_bytes

    @property
    def trunk(self) -> int:
        return self.shape.trunk * self.shape.parameter_bytes

    def master_weights(self, trained: int, on_host: bool) -> int:
        """Bytes of float32 master weights. Float32 parameters on the optimizer's device need none."""
        return trained * FLOAT32_BYTES if on_host or self.shape.parameter_bytes < FLOAT32_BYTES else 0

    def moments(self, trained: int, muon: bool) -> int:
        """Bytes of optimizer moments: two numbers per parameter for AdamW, one per matrix element for Muon."""
        return (2 * trained - (self.shape.matrices if muon else 0)) * FLOAT32_BYTES

    @property
    def layer_bytes(self) -> int:
        """Bytes that one token saves in one layer for the backward pass.

        Inputs and outputs of both norms and residuals, queries, keys, values, attention output, and three vectors of
        the feed-forward part.
        """
        shape = self.shape
        attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_size
        numbers = 4 * shape.hidden + 3 * shape.intermediate + attention
        size = numbers * shape.parameter_bytes + shape.heads * FLOAT32_BYTES + 2 * FLOAT32_BYTES
        return size if self.compiled else EAGER_FACTOR * size

    def activations(self, tokens: int, recompute: bool) -> int:
        """Bytes that a forward pass keeps for the backward pass."""
        vector = self.shape.hidden * self.shape.parameter_bytes
        per_layer = vector if recompute else self.layer_bytes
        return tokens * (self.shape.layers * per_layer + VECTORS_AFTER_LAYERS * vector)

    def working(self, tokens: int, recompute: bool) -> int:
        """Peak of temporary memory in a backward pass: logits and their gradient, then one layer at a time."""
        shape = self.shape
        per_weight = 0 if shape.adapter else FLOAT32_BYTES + shape.parameter_bytes
        head_gradient = shape.vocabulary * shape.hidden * per_weight
        layer = tokens * self.layer_bytes
        return max(self.logits(tokens) + head_gradient + recompute * layer, (1 + recompute) * layer)

    def scoring(self, tokens: int) -> int:
        """Peak of temporary memory in a forward pass without gradients."""
        return max(self.logits(tokens), tokens * self.layer_bytes)

    def logits(self, tokens: int) -> int:
        vocabulary = self.shape.vocabulary
        return LOGITS_GRADIENT_COPIES * min(tokens, chunk_rows(vocabulary)) * vocabulary * FLOAT32_BYTES

    def kv_cache(self, tokens: int) -> int:
        """Bytes of keys and values for this many positions."""
        shape = self.shape
        return tokens * 2 * shape.layers * shape.kv_heads * shape.head_size * shape.parameter_bytes

    def graphs(self, prefill_tokens: int, rows: int) -> int:
        """Bytes that the engine's captured graphs hold, their private working memory included."""
        logits = DECODE_LOGITS_COPIES * rows * self.shape.vocabulary * FLOAT32_BYTES
        return CUDA_GRAPHS + max(prefill_tokens * self.layer_bytes, logits)

    def staging(self) -> int:
        """Bytes of host buffers for gradients coming in and parameters going out, two of each."""
        shape = self.shape
        numbers = min(shape.trained, max(shape.largest_tensor, OFFLOAD_CHUNK))
        return 2 * numbers * (FLOAT32_BYTES + shape.parameter_bytes)
