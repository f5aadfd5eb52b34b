"""Reconstruct a picture as SVG, scored by its structure and its pixels."""

import random
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from turnwise.core.errors import EnvironmentFailure
from turnwise.core.section import Share
from turnwise.envs.adapters.package_envs import PackageEnv
from turnwise.envs.svg_reconstruction.scene import CANVAS, PALETTE, format_svg, random_scene
from turnwise.envs.text_env import Outcome, StrictParams

Count = Annotated[int, Field(ge=1, le=6)]


class SvgReconstruction(PackageEnv):
    """Write SVG that draws the picture."""

    max_turns = 3
    needs = MappingProxyType({"resvg_py": "'turnwise[svg]'", "PIL": "'turnwise[svg]'"})
    worker_env = "turnwise.envs.svg_reconstruction.worker:SvgWorkerEnv"
    timeout_s = 20.0

    class Params(StrictParams):
        min_shapes: Count = 1
        """Fewest shapes in a picture, 1 to 6; each task draws their number."""
        max_shapes: Count = 3
        """Most shapes in a picture, 1 to 6."""
        image_side: Annotated[int, Field(ge=16, le=512)] = 112
        """Width and height of the images in pixels."""
        structure_weight: Share = 0.5
        """Weight of the structure in the score; the rest is the weight of the pixels."""
        success_at: Share = 0.95
        """Least score of a successful picture, which ends the episode."""

        @model_validator(mode="after")
        def _counts_are_ordered(self) -> Self:
            if self.min_shapes > self.max_shapes:
                raise ValueError(f"min_shapes {self.min_shapes} is above max_shapes {self.max_shapes}: lower it")
            return self

    params: Params

    @classmethod
    def shows_images(cls, params: Any) -> bool:
        return True

    def rules(self) -> str:
        example = format_svg(random_scene(random.Random(0), min_shapes=1, max_shapes=1))
        return (
            f"{super().rules()} It has {self.params.min_shapes} to {self.params.max_shapes} shapes: rect, circle, "
            f"ellipse and polygon (a triangle), on a white canvas from 0,0 at the top left to {CANVAS},{CANVAS}.\n"
            f"Colors: {', '.join(PALETTE)}.\n"
            f"The action is the SVG, such as: {example}\n"
            "You see what it draws and may improve it."
        )

    def step(self, action: str) -> Outcome:
        """SVG that the renderer does not survive is the agent's mistake; the process starts again by itself."""
        try:
            return super().step(action)
        except EnvironmentFailure as failure:
            raise ValueError("the SVG cannot be rendered") from failure

    def random_action(self, rng: random.Random) -> str:
        return format_svg(random_scene(rng, min_shapes=self.params.min_shapes, max_shapes=self.params.max_shapes))
