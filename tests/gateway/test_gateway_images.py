"""Images in all dialects, for a model that reads them."""

import asyncio
import base64
import io
from types import ModuleType
from typing import Any

import pytest

from episodes_for_tests import renderer
from gateway_for_tests import RecordingPolicy, open_episode
from turnwise.core.images import image_hash
from turnwise.core.trajectory import Turn
from turnwise.engine.scripted import ScriptedEngine
from turnwise.gateway import anthropic_messages, openai_chat, openai_responses
from turnwise.gateway.chat import RequestError
from turnwise.models.loading.load import load_model
from turnwise.models.vision.processor import decode_image
from turnwise.pictures.image import MAX_SIDE, PNG_SIGNATURE
from turnwise.render.renderer import Renderer
from vision_models_for_tests import png

PICTURE = png(16, 16)


def chat_body(data: str, *later: dict[str, Any]) -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look:"}, image]}, *later]}


def responses_body(data: str, *later: dict[str, Any]) -> dict[str, Any]:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    return {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Look:"}, image]}, *later]}


def messages_body(data: str, *later: dict[str, Any]) -> dict[str, Any]:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look:"}, image]}, *later]}


DIALECTS = [(openai_chat, chat_body), (openai_responses, responses_body), (anthropic_messages, messages_body)]


@pytest.fixture(scope="module")
def seeing() -> Renderer:
    loaded = load_model("tiny_vlm")
    return Renderer(loaded.tokenizer, loaded.stop_ids, images=loaded.images)


def ask(chosen: Renderer, dialect: ModuleType, *bodies: dict[str, Any]) -> tuple[Turn, ...]:
    policy = RecordingPolicy(ScriptedEngine(lambda key, turn, ids: chosen.answer("a cat"), sorted(chosen.stop_ids)))

    async def run() -> tuple[Turn, ...]:
        async with open_episode(policy, renderer=chosen) as episode:
            for body in bodies:
                await episode.reply(dialect.parse(body))
            return episode.turns()

    return asyncio.run(run())


def test_images_have_the_same_ids_in_all_dialects(seeing: Renderer) -> None:
    data = base64.b64encode(PICTURE).decode()
    later = ({"role": "assistant", "content": "a cat"}, {"role": "user", "content": "Sure?"})
    trajectories = [ask(seeing, dialect, body(data), body(data, *later)) for dialect, body in DIALECTS]
    first, second = trajectories[0]
    assert [span.hash for span in first.images] == [image_hash(PICTURE)]
    assert min(first.context_ids) < 0
    assert second.extends and not second.images
    ids = [[(turn.context_ids, turn.action_ids) for turn in turns] for turns in trajectories]
    assert ids[0] == ids[1] == ids[2]


def test_transparent_image_of_a_request_is_seen_on_white() -> None:
    pillow = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    pillow.new("RGBA", (4, 4), (0, 0, 0, 0)).save(buffer, "PNG")
    assert decode_image(buffer.getvalue()).getpixel((0, 0)) == (255, 255, 255)


def test_image_of_a_request_is_kept_as_png(seeing: Renderer) -> None:
    """Run folders have PNG files, which the viewer shows; the model sees the same pixels."""
    file = io.BytesIO()
    decode_image(PICTURE).save(file, "JPEG")
    (turn,) = ask(seeing, openai_chat, chat_body(base64.b64encode(file.getvalue()).decode()))
    (span,) = turn.images
    assert seeing.images is not None
    kept = seeing.images.store.get(span.hash)
    assert kept.startswith(PNG_SIGNATURE) and decode_image(kept).tobytes() == decode_image(file.getvalue()).tobytes()


@pytest.mark.parametrize(("dialect", "body"), DIALECTS)
@pytest.mark.parametrize(
    ("picture", "problem"),
    [
        (PICTURE[:40], "cannot be decoded: 40 bytes that are not a PNG, JPEG, WebP or GIF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "are not a PNG, JPEG, WebP or GIF$"),
        (png(MAX_SIDE + 1, 1), "8193 x 1 pixels: give 1 to 8192 on each side"),
        (png(3008, 8), "processor refuses an image of 3008 x 8 pixels .*aspect ratio"),
    ],
    ids=["cut", "other format", "too large", "too long"],
)
def test_unusable_images_are_refused(
    seeing: Renderer, dialect: ModuleType, body: Any, picture: bytes, problem: str
) -> None:
    with pytest.raises(RequestError, match=problem):
        ask(seeing, dialect, body(base64.b64encode(picture).decode()))


@pytest.mark.parametrize(("dialect", "body"), DIALECTS)
def test_models_without_vision_refuse_images(dialect: ModuleType, body: Any) -> None:
    with pytest.raises(RequestError, match="does not read images"):
        ask(renderer(), dialect, body(base64.b64encode(PICTURE).decode()))
