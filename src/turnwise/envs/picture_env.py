"""VisualEnv: a TextEnv that shows its state as text, image or both. PictureEnv: the state is a grid of named cells."""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from turnwise.core.messages import Content, ImagePart, Picture, join_lines
from turnwise.envs.grid import describe_cells
from turnwise.envs.text_env import TextEnv
from turnwise.pictures.image import import_pillow
from turnwise.pictures.observation import draw_observation

Observation = Literal["text", "image", "both"]
CellPixels = Annotated[int, Field(ge=4, le=128)]


class VisualEnv(TextEnv):
    """Rules of an environment that shows its state as text, as an image, or as both; see `TextEnv`."""

    view_params = (*TextEnv.view_params, "observation")

    @classmethod
    def common_params(cls) -> dict[str, Any]:
        description = "Form of the observation: text, image, or both."
        return super().common_params() | {"observation": (Observation, Field("text", description=description))}

    @classmethod
    def check(cls, params: Any) -> None:
        super().check(params)
        if cls.shows_images(params):
            import_pillow()

    @classmethod
    def shows_images(cls, params: Any) -> bool:
        return params.observation in ("image", "both")

    @property
    def shows_text(self) -> bool:
        """Whether observations contain the state as text."""
        return self.params.observation != "image"

    def show(self, state: str, *, before: str = "", after: str = "") -> Content:
        """Return the observation of a state, with what the image does not show before and after it."""
        image = self.draw_image() if self.shows_images(self.params) else ""
        return join_lines([before, image, state if self.shows_text else "", after])

    @abstractmethod
    def draw_image(self) -> ImagePart:
        """Return the image of the current state that the model sees."""


class PictureEnv(VisualEnv):
    """Rules of an environment whose state is a grid of named cells."""

    view_params = (*VisualEnv.view_params, "cell_pixels")
    plain_cells: ClassVar[frozenset[str]] = frozenset({"empty"})
    """Names of cells that descriptions of the state leave out."""
    fact_example = "player at row 1 col 2"

    @classmethod
    def common_params(cls) -> dict[str, Any]:
        description = "Pixels on a side of each cell in images; 28 is one token of Qwen2.5-VL."
        return super().common_params() | {"cell_pixels": (CellPixels, Field(28, description=description))}

    @classmethod
    def image_params(cls, pixels: int) -> dict[str, Any]:
        return {"cell_pixels": pixels}

    def draw_image(self) -> ImagePart:
        return draw_observation(self.draw(), self.params.cell_pixels)

    @abstractmethod
    def draw(self) -> Picture:
        """Draw the current state, for the model and for humans."""

    def state_text(self) -> str:
        """Return the cells of the picture that are not plain: `player at row 1 col 2`, one per line."""
        return describe_cells(self.draw().rows, self.plain_cells)
