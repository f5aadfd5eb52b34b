"""PictureEnv: a TextEnv that shows its state as text, as an image of `draw()`, or as both."""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from turnwise.core.image_encoding import import_pillow
from turnwise.core.messages import Content, Picture
from turnwise.envs.grid import describe_cells
from turnwise.envs.text_env import TextEnv
from turnwise.pictures.observation import draw_observation

Observation = Literal["text", "image", "both"]
CellPixels = Annotated[int, Field(ge=4, le=128)]


class PictureEnv(TextEnv):
    """Rules of an environment whose state is a grid of named cells; see `TextEnv`."""

    view_params = (*TextEnv.view_params, "observation", "cell_pixels")
    plain_cells: ClassVar[frozenset[str]] = frozenset({"empty"})
    """Names of cells that descriptions of the state leave out."""
    fact_example = "player at row 1 col 2"

    @classmethod
    def common_params(cls) -> dict[str, Any]:
        observation = "Form of the observation: text, image, or both."
        cell_pixels = "Pixels on a side of each cell in images; 28 is one token of Qwen2.5-VL."
        return super().common_params() | {
            "observation": (Observation, Field("text", description=observation)),
            "cell_pixels": (CellPixels, Field(28, description=cell_pixels)),
        }

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
        text = "\n".join(part for part in (before, state if self.shows_text else "", after) if part)
        if not self.shows_images(self.params):
            return text
        rest = "\n".join(part for part in (state if self.shows_text else "", after) if part)
        image = draw_observation(self.draw(), self.params.cell_pixels)
        return (f"{before}\n" if before else "", image, f"\n{rest}" if rest else "")

    @abstractmethod
    def draw(self) -> Picture:
        """Draw the current state, for the model and for humans."""

    def state_text(self) -> str:
        """Return the cells of the picture that are not plain: `player at row 1 col 2`, one per line."""
        return describe_cells(self.draw().rows, self.plain_cells)
