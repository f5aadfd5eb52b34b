"""Features of images in place of the embeddings of their tokens, and positions in models with a grid for images."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from inspect import signature
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.vision_utils import get_vision_position_ids

from turnwise.concurrency.bounded_cache import BoundedCache
from turnwise.core.images import INDEX_BITS, MAX_IMAGE_TOKENS, find_images, format_hash
from turnwise.models.vision.processor import ImageProcessor, ProcessedImage

CACHE_BYTES = 256 << 20
"""Features kept in memory."""
MAX_BATCH = 128
"""Images per forward of a vision tower that is trained or on a GPU."""
EXACT_BATCH, EXACT_PATCHES = 16, 2048
"""Most images and patches per forward of a frozen tower on the CPU."""
GRIDS = "image_grid_thw"
"""Input of the Qwen family: patches of each image in time, rows and columns."""
GRIDS_ON_DEVICE = frozenset({"qwen3_vl"})
"""Model types whose tower computes with the grids. Others only read them, which on a GPU would wait for it."""


class ImageEncoder:
    """Computes the features of each image once, for all turns and members of a group, until the vision tower changes.

    On the CPU the features of a frozen tower do not depend on what else is computed: it runs on single images, and on
    batches of one size if these give, bit for bit, the features of single images. On a GPU, or if it is trained and
    features are computed anew after every optimizer step, it runs on batches of any size.
    """

    def __init__(self, processor: ImageProcessor, merge_size: int | None = None, *, whole_images: bool = False) -> None:
        """`merge_size`: patches per token and side, in models with multimodal rotary positions; None in others.

        `whole_images`: whether the tokens of an image attend to all of it.
        """
        self.processor = processor
        self.merge_size = merge_size
        self.whole_images = whole_images
        self.tower_version: Callable[[], int] | None = None
        """Number that changes with the vision tower's weights, if these are sharded; None counts writes to them."""
        self.reaches_all_batches = False
        """Whether batches without images give a trained tower gradients of 0: ranks must reduce the same ones."""
        self._features = BoundedCache[Tensor](attrgetter("nbytes"), CACHE_BYTES)
        self._version = -1
        self._exact: dict[tuple[Any, ...], bool] = {}
        """Whether a batch gives the features of single images, by number of threads, dtype and grid."""

    def __deepcopy__(self, _: Any) -> "ImageEncoder":
        """Return an encoder for a copy of the model, which computes its own features."""
        return ImageEncoder(self.processor, self.merge_size, whole_images=self.whole_images)

    def features(self, trunk: Any, tokens: Tensor) -> Tensor:
        """Return the features of image tokens, [P] -> [P, H]. They have gradients if the vision tower is trained.

        In models with DeepStack (Qwen3-VL), what the first layers add to their outputs follows: [P, (1 + layers) H].
        """
        codes = -1 - tokens.cpu()
        images, inverse = (codes >> INDEX_BITS).unique(return_inverse=True)
        keys = _hashes(images)
        tower = vision_parameters(trunk)
        trained = any(parameter.requires_grad for parameter in tower)
        if trained and torch.is_grad_enabled():
            tables = self._encode(trunk, keys)
        else:
            self._forget_if_changed(tower)
            tables = self._cached(trunk, keys, exact=not trained and not tower[0].is_cuda)
        sizes = torch.tensor([len(table) for table in tables])
        rows = (sizes.cumsum(0) - sizes)[inverse] + codes % MAX_IMAGE_TOKENS
        return torch.cat(tables).index_select(0, send(rows, tables[0].device))

    def zero_features(self, trunk: Any) -> Tensor | None:
        """Return a 0 that gives the vision tower gradients of 0, for a batch without images; None if it needs none."""
        if not self.reaches_all_batches or not torch.is_grad_enabled():
            return None
        if not any(vision_parameter.requires_grad for vision_parameter in vision_parameters(trunk)):
            return None
        (table,) = self._forward(trunk, [self.processor.blank])
        return 0 * table.sum()

    def _forget_if_changed(self, tower: Iterable[nn.Parameter]) -> None:
        """Drop all features if the weights that computed them were written since."""
        version = sum(parameter._version for parameter in tower) if self.tower_version is None else self.tower_version()
        if version != self._version:
            self._features.clear()
            self._version = version

    @torch.inference_mode(False)
    @torch.no_grad()
    def _cached(self, trunk: Any, keys: Sequence[str], *, exact: bool) -> list[Tensor]:
        """Return the features of each image, [T, H], computing only those that are not in the cache."""
        tables = {key: table for key in keys if (table := self._features.get(key)) is not None}
        missing = [key for key in keys if key not in tables]
        for batch in self._exact_batches(trunk, missing) if exact else _split(missing, MAX_BATCH):
            for key, table in zip(batch, self._encode(trunk, batch), strict=True):
                tables[key] = table.clone()
                self._features.put(key, tables[key])
        return [tables[key] for key in keys]

    def _exact_batches(self, trunk: Any, keys: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield batches that give the features of single images, and the remaining images one at a time."""
        layouts: dict[tuple[Any, ...], list[str]] = {}
        for key in keys:
            inputs = self.processor.process(key).inputs
            layout = (inputs["pixel_values"].dtype, *inputs[GRIDS][0].tolist()) if GRIDS in inputs else ()
            layouts.setdefault(layout, []).append(key)
        for layout, alike in layouts.items():
            size = min(EXACT_BATCH, EXACT_PATCHES // prod(layout[1:])) if layout else 1
            is_exact = 1 < size <= len(alike) and self._is_exact(trunk, alike[0], size, layout)
            batched = len(alike) // size * size if is_exact else 0
            yield from _split(alike[:batched], size)
            yield from _split(alike[batched:], 1)

    def _is_exact(self, trunk: Any, key: str, size: int, layout: tuple[Any, ...]) -> bool:
        """Return whether an image has the same features, to the bit, alone and at every index of a batch of itself.

        That depends on the kernels that this machine has for these shapes, not on the pixels.
        """
        case = torch.get_num_threads(), *layout
        if case not in self._exact:
            image = self.processor.process(key)
            (alone,) = self._forward(trunk, [image])
            self._exact[case] = all(torch.equal(alone, features) for features in self._forward(trunk, [image] * size))
        return self._exact[case]

    def _encode(self, trunk: Any, keys: Sequence[str]) -> list[Tensor]:
        """Return the features of each image, [T, H]. The vision tower runs once on all inputs of equal shape."""
        groups: dict[tuple[Any, ...], dict[str, ProcessedImage]] = {}
        for key in keys:
            image = self.processor.process(key)
            shapes = tuple((name, value.dtype, value.shape[1:]) for name, value in _tower_inputs(trunk, image).items())
            groups.setdefault(shapes, {})[key] = image
        tables: dict[str, Tensor] = {}
        for images in groups.values():
            tables |= zip(images, self._forward(trunk, list(images.values())), strict=True)
        return [tables[key] for key in keys]

    def _forward(self, trunk: Any, images: Sequence[ProcessedImage]) -> Sequence[Tensor]:
        """Run the vision tower on images whose inputs have equal shapes."""
        weight = trunk.get_input_embeddings().weight
        on_host = () if trunk.config.model_type in GRIDS_ON_DEVICE else (GRIDS,)
        inputs: dict[str, Tensor] = {}
        for name in _tower_inputs(trunk, images[0]):
            value = torch.cat([image.inputs[name] for image in images])
            if name not in on_host:
                value = self.processor.expand(send(value, weight.device))
            inputs[name] = value.to(weight.dtype) if value.is_floating_point() else value
        if self.merge_size is not None:  # else computed by a dozen operations per image on the device
            grids = torch.cat([image.inputs[GRIDS] for image in images]).tolist()
            positions = torch.cat([patch_positions(self.merge_size, *grid) for grid in grids])
            inputs["position_ids"] = send(positions, weight.device)
        outputs = trunk.get_image_features(**inputs, return_dict=True)
        tables = [outputs.pooler_output, *(outputs.get("deepstack_features") or ())]
        whole = [table if isinstance(table, Tensor) else torch.cat(list(table)) for table in tables]
        flat = torch.cat([table.reshape(-1, weight.shape[1]) for table in whole], dim=1)
        return flat.split([image.count for image in images])

    def place(self, ids: Sequence[int], start: int) -> tuple[Tensor, int]:
        """Return the rotary positions of ids from `start` on [3, T], and the position after them.

        A text token advances the position by 1 on all three axes. An image begins at one position and spreads from it
        over time, rows and columns; the text after it continues behind its longer side.
        """
        positions = torch.arange(start, start + len(ids)).repeat(3, 1)
        end = start + len(ids)
        for span in find_images(ids):
            grid = self.grid(span.hash)
            positions[:, span.start : span.end] = positions[0, span.start] + grid
            shift = int(grid.max()) + 1 - grid.shape[1]
            positions[:, span.end :] += shift
            end += shift
        return positions, end

    def grid(self, key: str) -> Tensor:
        """Return the position of each token of an image in its grid: time, row and column. [3, T]"""
        merge_size = self.merge_size or 1
        time, rows, columns = self.processor.process(key).inputs[GRIDS][0].tolist()
        return grid_of(time, rows // merge_size, columns // merge_size)


def _tower_inputs(trunk: Any, image: ProcessedImage) -> dict[str, Tensor]:
    """Return the inputs of an image that the model's vision tower reads."""
    read = signature(trunk.get_image_features).parameters
    return {name: value for name, value in image.inputs.items() if name in read}


def _split(keys: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device. One of the host is copied without waiting for the transfer."""
    return tensor if tensor.device == device else tensor.pin_memory().to(device, non_blocking=True)


def hashes_in(ids: Tensor) -> list[str]:
    """Return the hashes of the images among the ids, without duplicates."""
    return _hashes(((-1 - ids[ids < 0]) >> INDEX_BITS).unique())


def _hashes(numbers: Tensor) -> list[str]:
    return [format_hash(number) for number in numbers.tolist()]


@lru_cache(maxsize=256)
def patch_positions(merge_size: int, *grid: int) -> Tensor:
    """Return row and column of each patch of an image, in the order in which a tower of the Qwen family reads them."""
    return get_vision_position_ids(torch.tensor([grid]), merge_size)


@lru_cache(maxsize=256)
def grid_of(*sizes: int) -> Tensor:
    """Return the coordinates of all cells of a grid. [len(sizes), cells]"""
    axes = torch.meshgrid(*(torch.arange(size) for size in sizes), indexing="ij")
    return torch.stack([axis.flatten() for axis in axes])


def attach_encoder(model: Any, encoder: ImageEncoder) -> None:
    """Let `image_encoder` find the encoder of the model, of its copies and of its trunk."""
    model.base_model.image_encoder = encoder


def image_encoder(model: Any) -> ImageEncoder | None:
    """Return the encoder of a model that reads images, or None."""
    return getattr(model.base_model, "image_encoder", None)


def vision_parameters(model: Any) -> list[nn.Parameter]:
    """Return the parameters of the vision tower and of its projection: all that are not the language model's."""
    decoder = model.base_model.get_decoder()
    parameters: dict[int, nn.Parameter] = {}

    def collect(module: nn.Module) -> None:
        if module is not decoder:
            parameters.update((id(parameter), parameter) for parameter in module.parameters(recurse=False))
            for child in module.children():
                collect(child)

    collect(model.base_model)
    return list(parameters.values())


def vision_names(model: Any) -> frozenset[str]:
    """Return the names of the parameters of the vision tower and of its projection; none for a text model."""
    if image_encoder(model) is None:
        return frozenset()
    vision_ids = {id(vision_parameter) for vision_parameter in vision_parameters(model)}
    return frozenset(name for name, parameter in model.named_parameters() if id(parameter) in vision_ids)


@contextmanager
def embed_images(model: Any, ids: Tensor) -> Iterator[Tensor]:
    """Yield ids to pass to the model in this block, where its embeddings of image tokens are their features. [N]

    Ids on the host are moved to the model's device; those on a GPU are waited for.
    """
    encoder = image_encoder(model)
    if encoder is None:
        yield ids
        return
    embeddings, is_image = model.get_input_embeddings(), ids < 0
    device = ids.device if ids.is_cuda else embeddings.weight.device
    if bool(is_image.any()):
        hooks = _embed_features(model, encoder, ids, is_image, device)
    elif (zero := encoder.zero_features(model.base_model)) is not None:
        hooks = [embeddings.register_forward_hook(lambda _, __, output: output + zero)]
    else:
        hooks = []
    try:
        yield send(ids.clamp(min=0) if hooks else ids, device)
    finally:
        for hook in hooks:
            hook.remove()


def _embed_features(
    model: Any, encoder: ImageEncoder, ids: Tensor, is_image: Tensor, device: torch.device
) -> list[RemovableHandle]:
    """Let the model's embeddings of image tokens be their features; return hooks to remove."""
    embeddings, image_indices = model.get_input_embeddings(), is_image.nonzero()[:, 0]
    first, *deeper = encoder.features(model.base_model, ids[image_indices]).split(embeddings.weight.shape[1], dim=1)
    tokens = send(image_indices, device)

    def replace(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output.index_copy(1, tokens, first.to(output.dtype)[None])

    def add_to_layers(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
        return inputs, options | {"visual_pos_masks": send(is_image, device)[None], "deepstack_visual_embeds": deeper}

    hooks = [embeddings.register_forward_hook(replace)]
    if deeper:
        decoder = model.base_model.get_decoder()
        hooks.append(decoder.register_forward_pre_hook(add_to_layers, with_kwargs=True))
    return hooks


def place_rows(model: Any, ids: Tensor, positions: Tensor, lengths: Sequence[int], parents: Sequence[int]) -> Tensor:
    """Return the position ids of packed rows: [1, N], or [3, 1, N] if the model places images in a grid.

    `parents[i]` is the row that row i continues, or -1.
    """
    encoder = image_encoder(model)
    if encoder is None or encoder.merge_size is None or not bool((ids < 0).any()):
        return positions[None]
    ends: list[int] = []
    placed: list[Tensor] = []
    for row, parent in zip(ids.cpu().split(list(lengths)), parents, strict=True):
        token_positions, end = encoder.place(row.tolist(), ends[parent] if parent >= 0 else 0)
        placed.append(token_positions)
        ends.append(end)
    return torch.cat(placed, dim=1)[:, None].to(ids.device)


def trains_vision(model: Any) -> bool:
    """Return whether the model reads images and its vision tower is trained."""
    return image_encoder(model) is not None and any(
        vision_parameter.requires_grad for vision_parameter in vision_parameters(model)
    )


def freeze_vision(model: Any) -> None:
    """Train the language model alone."""
    for parameter in vision_parameters(model):
        parameter.requires_grad_(False)


def save_processor(model: Any, folder: Path) -> None:
    """Write the files of the model's image processor, if it has one."""
    encoder = image_encoder(model)
    if encoder is not None:
        encoder.processor.save(folder)
