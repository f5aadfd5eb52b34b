"""The page that plays and chats with a checkpoint, in a browser."""

import shutil
from pathlib import Path

import pytest
from studio_for_tests import StudioPage

from opened_page_for_tests import expect


@pytest.fixture
def loaded(opened: StudioPage, trained: Path) -> StudioPage:
    """The page of a loaded checkpoint."""
    shutil.copytree(trained, Path("runs/lake"))
    opened.open("run", run="lake")
    opened.page.get_by_role("link", name="Play", exact=True).last.click()
    expect(opened.page.get_by_role("button", name="Load")).to_be_focused()
    opened.page.keyboard.press("Enter")
    expect(opened.page.get_by_role("status").filter(has_text="The model replies")).to_be_visible()
    return opened


def test_episode_is_played_with_keys_and_text(loaded: StudioPage) -> None:
    page = loaded.page
    episode = page.get_by_role("region", name="Episode")
    turns = episode.locator(".turn:not(.pending)")
    expect(episode.get_by_role("button", name="New episode")).to_be_enabled()
    page.keyboard.press("n")
    expect(episode.locator(".pending")).to_contain_text("Walk over the ice")
    expect(episode.locator("img.picture")).to_be_visible()
    page.keyboard.press("ArrowUp")
    expect(turns).to_have_count(1)
    expect(turns.first).to_contain_text("<answer>Up</answer>")
    expect(turns.first).to_contain_text("you")
    page.keyboard.press("i")
    page.keyboard.type("fly")
    page.keyboard.press("Enter")
    expect(turns).to_have_count(2)
    expect(turns.last).to_contain_text("invalid")
    expect(episode.get_by_label("Reply yourself")).to_have_value("")
    page.keyboard.press("Escape")
    page.keyboard.press("h")
    expect(page.locator(".play-message")).to_contain_text("hint: ")
    page.keyboard.press("a")
    expect(turns).to_have_count(3)
    expect(turns.last.locator("h4").last).to_have_text("model", ignore_case=True)
    page.keyboard.press("p")
    expect(episode.locator(".play-result")).to_contain_text("Total reward")
    expect(turns).to_have_count(5)
    expect(episode.get_by_role("button", name="Let the agent reply")).to_be_disabled()


def test_tokens_of_the_reply_are_shown(loaded: StudioPage) -> None:
    page = loaded.page
    episode = page.get_by_role("region", name="Episode")
    page.keyboard.press("n")
    expect(episode.locator(".pending")).to_be_visible()
    page.keyboard.press("a")
    expect(episode.locator(".turn:not(.pending)")).to_have_count(1)
    episode.get_by_label("Tokens").check()
    episode.locator(".token-run.action").scroll_into_view_if_needed()
    token = episode.locator(".token.action").first
    expect(token).to_be_visible()
    token.click()
    expect(episode.locator("[data-field=probability]")).not_to_have_text("")
    page.keyboard.press("ArrowRight")
    expect(episode.locator(".token.action").nth(1)).to_be_focused()


def test_chat_is_beside_the_episode(loaded: StudioPage) -> None:
    page = loaded.page
    chat = page.get_by_role("region", name="Conversation")
    chat.get_by_text("System message").click()
    chat.get_by_label("For the next new conversation").fill("Be brief.")
    page.keyboard.press("Escape")
    page.get_by_label("Message", exact=True).fill("<b>Hello</b>")
    page.keyboard.press("Enter")
    expect(chat.locator(".turn")).to_have_count(1)
    expect(chat.locator(".turn")).to_contain_text("<b>Hello</b>")
    expect(chat.locator(".turn")).to_contain_text("Be brief.")
    expect(page.get_by_label("Message", exact=True)).to_have_value("")
    expect(chat.locator(".turn")).not_to_contain_text("reward")
    page.reload()
    expect(chat.locator(".turn")).to_have_count(1)
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("heading", name="Load a checkpoint")).to_be_visible()
    assert page.get_by_role("heading", name="Loaded").count() == 0
