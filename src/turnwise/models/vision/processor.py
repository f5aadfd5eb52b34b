"""Images as a model reads them: the ids that stand for an image in a context, and its pixel tensors."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from turnwise.concurrency.bounded_cache import BoundedCache
from turnwise.core.errors import EnvironmentFailure, ImageError
from turnwise.core.images import MAX_IMAGE_TOKENS, format_hash, image_hash, image_token_id
from turnwise.models.vision.patches import PatchCutter
from turnwise.pictures.image import PNG_SIGNATURE, encode_png, import_pillow, open_image, to_rgb
from turnwise.pictures.image_store import ImageStore

if TYPE_CHECKING:
    from PIL.Image import Image

MEMORY_BYTES = 1 << 30
"""Pixel tensors kept in memory; those of other images are computed again when needed."""
BLANK_SIDE = 56
PARTS = ("image_processor", "tokenizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedImage:
    ids: tuple[int, ...]
    """Ids of the image in a context: tokens of the image, which are below 0, and the scaffolding between them."""
    count: int
    """Number of tokens of the image: one for each of its features."""
    inputs: dict[str, Tensor]
    """Pixels and grids, by the names of the model's arguments. Pixels may be bytes, which `expand` converts."""

    @property
    def size_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.inputs.values())


class ImageProcessor:
    """Processes encoded images with a Hugging Face processor, each image apart from all others.

    `placeholder_id`: token that the processor repeats for the features of an image.
    """

    def __init__(self, processor: Any, placeholder_id: int, store: ImageStore | None = None) -> None:
        self.processor, self.placeholder_id = processor, placeholder_id
        self.store = store or ImageStore()
        self.marker: str = processor.image_token
        """Text that chat templates write in place of an image."""
        self.placeholder: str = processor.tokenizer.convert_ids_to_tokens(placeholder_id)
        """Text of the placeholder. That of Gemma 3 is not its marker, which becomes a token before the image."""
        defaults = getattr(processor.valid_processor_kwargs, "_defaults", {}).get("images_kwargs", {})
        self._settings = {**getattr(processor, "images_kwargs", {}), **defaults}  # since transformers 5.23, and before
        self._cutter = None if self._settings else PatchCutter.for_processor(processor.image_processor)
        self._encode = lru_cache(maxsize=256)(self._encode_text)
        self._tokens_of_grid = lru_cache(maxsize=256)(self._encode_grid)
        self._processed = BoundedCache[ProcessedImage](attrgetter("size_bytes"), MEMORY_BYTES)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings alone: another process has its own images."""
        return ImageProcessor, (self.processor, self.placeholder_id)

    def ids(self, data: bytes) -> tuple[int, ...]:
        """Put an encoded image into the store; return its ids. Raises EnvironmentFailure if it cannot be read.

        The store has PNG files only: other formats, as in an agent's requests, are converted.
        """
        png = data if data.startswith(PNG_SIGNATURE) else encode_png(decode_image(data))
        return self.process(self.store.put(png)).ids

    def preview_ids(self, data: bytes) -> tuple[int, ...]:
        """Return the ids of an encoded image without keeping it. Raises EnvironmentFailure if it cannot be read."""
        return self._process(image_hash(data), decode_image(data)).ids

    def process(self, key: str) -> ProcessedImage:
        """Return the processed image with this hash."""
        processed = self._processed.get(key)
        if processed is None:
            processed = self._process(key, decode_image(self.store.get(key)))
            self._processed.put(key, processed)
        return processed

    @cached_property
    def blank(self) -> ProcessedImage:
        """A white image, which is in no context."""
        return self._process(format_hash(0), import_pillow().Image.new("RGB", (BLANK_SIDE, BLANK_SIDE), "white"))

    def _process(self, key: str, image: "Image") -> ProcessedImage:
        features = None if self._cutter is None else self._cutter.cut(image)
        if features is None:
            features = self._call_processor(image)
            tokens = list(self._encode(self.processor.replace_image_token(features, image_idx=0)))
        else:
            tokens = list(self._tokens_of_grid(*features["image_grid_thw"][0].tolist()))
        positions = [position for position, token in enumerate(tokens) if token == self.placeholder_id]
        if len(positions) > MAX_IMAGE_TOKENS:
            width, height = image.size
            raise EnvironmentFailure(
                f"an image of {width} x {height} pixels has {len(positions)} tokens, more than {MAX_IMAGE_TOKENS}: "
                "return smaller images"
            )
        first = image_token_id(key, 0)
        for index, position in enumerate(positions):
            tokens[position] = first - index
        inputs = {name: value for name, value in features.items() if isinstance(value, Tensor)}
        return ProcessedImage(ids=tuple(tokens), count=len(positions), inputs=inputs)

    def _call_processor(self, image: "Image") -> Any:
        try:
            return self.processor.image_processor([image], return_tensors="pt", **self._settings)
        except ValueError as error:  # such as an image that is 200 times as wide as it is high
            width, height = image.size
            raise EnvironmentFailure(
                f"the model's processor refuses an image of {width} x {height} pixels ({error})"
            ) from error

    def expand(self, values: Tensor) -> Tensor:
        """Return the values of an input of several images: those of its bytes, if it has bytes."""
        return values if self._cutter is None or values.dtype != torch.uint8 else self._cutter.expand(values)

    def _encode_text(self, text: str) -> list[int]:
        """Encode what stands for an image, which is the same for all images of its size."""
        return self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _encode_grid(self, *grid: int) -> list[int]:
        """Encode what stands for an image that was cut into patches, which depends on its grid alone."""
        return self._encode(self.processor.replace_image_token({"image_grid_thw": torch.tensor([grid])}, image_idx=0))

    def save(self, folder: Any) -> None:
        """Write the processor's files beside the model's."""
        self.processor.save_pretrained(folder)
        self.processor.image_processor.save_pretrained(folder)  # other programs read it for videos too


def decode_image(data: bytes) -> "Image":
    """Decode an image file. Raises EnvironmentFailure if it is broken, too large or of another format."""
    try:
        return to_rgb(open_image(data))
    except ImageError as error:
        raise EnvironmentFailure(f"an image cannot be decoded: {error.args[0]}") from error


def images_only(processor_class: Any) -> Any:
    """Return the processor class without its video and audio parts, which need further packages."""
    parts = processor_class.get_attributes()
    kept = [name for name in parts if name in PARTS]

    class ImagesOnly(processor_class):
        @classmethod
        def get_attributes(cls) -> list[str]:
            return kept

        @classmethod
        def _get_arguments_from_pretrained(cls, *arguments: Any, **options: Any) -> list[Any]:
            loaded = super()._get_arguments_from_pretrained(*arguments, **options)
            return [*loaded, *[None] * (len(parts) - len(kept))]

        def __reduce__(self) -> tuple[Any, ...]:
            return _restore_images_only, (processor_class, self.__dict__)

    ImagesOnly.__name__ = processor_class.__name__  # which is saved
    return ImagesOnly


def _restore_images_only(processor_class: Any, state: dict[str, Any]) -> Any:
    """Return a pickled processor. Its class, which is made when needed, has no name to be found by."""
    restored = object.__new__(images_only(processor_class))
    restored.__dict__.update(state)
    return restored
