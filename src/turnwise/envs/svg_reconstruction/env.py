"""Reconstruct a picture as SVG, scored by its structure and its pixels."""

import random
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from turnwise.core.messages import Content
from turnwise.envs.svg_reconstruction.renderer import MAX_SIDE, Renderers, shared_renderers
from turnwise.envs.svg_reconstruction.scene import CANVAS, PALETTE, format_svg, random_scene, read_svg
from turnwise.envs.svg_reconstruction.scoring import pixel_score, structure_score
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv, check_range
from turnwise.pictures.image import Image
from turnwise.settings.section import Share

Count = Annotated[int, Field(ge=1, le=6)]


class SvgReconstruction(TextEnv):
    """Write SVG that draws the picture."""

    max_turns = 3
    needs = MappingProxyType({"resvg_py": "'turnwise[svg]'", "PIL": "'turnwise[svg]'"})
    view_params = (*TextEnv.view_params, "timeout_s", "memory_mb")

    class Params(StrictParams):
        min_shapes: Count = 1
        """Fewest shapes in a picture, 1 to 6; each task draws their number."""
        max_shapes: Count = 3
        """Most shapes in a picture, 1 to 6."""
        image_side: Annotated[int, Field(ge=16, le=MAX_SIDE)] = 112
        """Width and height of the images in pixels."""
        structure_weight: Share = 0.5
        """Weight of the structure in the score; the rest is the weight of the pixels."""
        success_at: Share = 0.95
        """Least score of a successful picture, which ends the episode."""
        timeout_s: Annotated[float, Field(gt=0, le=600)] = 5.0
        """Time limit of rendering one picture in seconds."""
        memory_mb: Annotated[int, Field(ge=64)] = 256
        """Memory limit of rendering one picture in MiB."""

        _check_shapes = check_range("min_shapes", "max_shapes")

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
            "You see what it draws, with scores from 0 to 1 for structure (kind, place and color of each shape) and "
            "pixels, and may improve it."
        )

    async def reset(self, rng: random.Random) -> Content:
        self.best_score = 0.0
        self.scene = random_scene(
            random.Random(rng.getrandbits(63)), min_shapes=self.params.min_shapes, max_shapes=self.params.max_shapes
        )
        self.target = await self.renderers.targets.render(format_svg(self.scene), self.params.image_side)
        return Image(self.target)

    async def step(self, action: str) -> Outcome:
        """Show the drawing of this SVG and its score; the reward is the improvement over the best one so far."""
        shapes = read_svg(action)
        drawn = await self.renderers.answers.render(format_svg(shapes), self.params.image_side)
        structure, pixels = structure_score(shapes, self.scene), pixel_score(drawn, self.target)
        weight = self.params.structure_weight
        score = weight * structure + (1 - weight) * pixels
        reward, self.best_score = max(0.0, score - self.best_score), max(score, self.best_score)
        solved = score >= self.params.success_at
        text = f"Your last picture: structure {structure:.2f}, pixels {pixels:.2f}."
        return Outcome(text=(Image(drawn), f"\n{text}"), reward=reward, over=solved, success=solved)

    @property
    def renderers(self) -> Renderers:
        return shared_renderers(self.params.timeout_s, self.params.memory_mb)

    def solve(self) -> list[str]:
        return [format_svg(self.scene)]

    def random_action(self, rng: random.Random) -> str:
        return format_svg(random_scene(rng, min_shapes=self.params.min_shapes, max_shapes=self.params.max_shapes))
