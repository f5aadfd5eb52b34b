"""The studio's page in a browser: the form of a new run and the list of jobs."""

from pathlib import Path
from urllib.parse import parse_qs

from playwright.sync_api import Page
from studio_for_tests import StudioPage

from opened_page_for_tests import expect
from turnwise.config.load import build, to_toml
from turnwise.core.trajectory import TokenName
from turnwise.record.run_folder import RunFolder
from work_for_tests import wait_until


def write_run(name: str, *overrides: tuple[str, str]) -> None:
    RunFolder.create(Path("runs") / name, to_toml(build({}, [("env.kind", "bandit"), *overrides]))).close()


def write_episode(name: str) -> None:
    turn = {
        "context": "<b>Choose.</b>",
        "context_ids": [1],
        "extends": False,
        "action_ids": [2],
        "message": {"role": "assistant", "content": "<answer>1</answer>"},
        "reward": 1.0,
        "stop": "eos",
    }
    row = {
        "step": 1,
        "group": 0,
        "member": 0,
        "task": {"env": "bandit", "seed": 7, "split": "train"},
        "status": "succeeded",
        "reward": 1.0,
        "rewards": {},
        "tokens": 1,
        "turns": [turn],
    }
    with RunFolder.open(Path("runs") / name, writing=True) as folder:
        folder.write_trajectories(1, [row], lambda each: TokenName(id=each, text="x", special=False))


def fill(page: Page, name: str, text: str) -> None:
    """Type a setting of the form, opening its section."""
    field = page.locator(f'.setting[data-name="{name}"]')
    field.evaluate("each => { const section = each.closest('details'); if (section) section.open = true; }")
    field.locator("input").fill(text)
    field.locator("input").blur()


def test_run_is_started_from_the_form(opened: StudioPage) -> None:
    page = opened.page
    opened.open("jobs")
    expect(page.locator("main")).to_contain_text("No jobs yet.")
    page.locator("main").get_by_role("link", name="New run").click()
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    page.get_by_label("Train on").fill("bandit")
    page.get_by_label("Train on").blur()
    expect(page.locator('.setting[data-name="train.steps"] input')).not_to_have_value("")
    expect(page.locator('.setting[data-name="env.params.low"] input')).to_have_value("0.1")
    fill(page, "train.steps", "0")
    expect(page.get_by_role("alert")).to_have_text("train.steps = 0: must be a whole number of 1 or more")
    assert page.locator('.setting[data-name="train.steps"] input').get_attribute("aria-invalid") == "true"
    expect(page.get_by_role("button", name="Plan")).to_be_disabled()
    fill(page, "train.steps", "3")
    fill(page, "env.params.low", "0.2")
    fill(page, "record.name", "mine")
    expect(page.get_by_role("button", name="Plan")).to_be_enabled()
    assert page.locator('.setting[data-name="train.steps"] input').get_attribute("aria-invalid") is None
    page.get_by_role("button", name="Plan").click()
    expect(page.locator(".plan")).to_contain_text("3 steps of")
    expect(page.get_by_role("button", name="Start")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("tr[data-job='1']")).to_contain_text("finished")
    words = opened.queue.read_log(1, 0)[0]
    for word in ("'bandit'", "'--train.steps=3'", "'--env.params.low=0.2'", "'--record.name=mine'"):
        assert word in words


def test_fields_follow_the_chosen_alternative(opened: StudioPage) -> None:
    opened.open("new_run", target="bandit")
    page = opened.page
    clip, beta = (page.locator(f'.setting[data-name="algo.loss.{name}"]') for name in ("clip_low", "sft_coef"))
    expect(clip).not_to_have_attribute("hidden", "")
    expect(beta).to_have_attribute("hidden", "")
    fill(page, "algo.loss", "dpo")
    expect(beta).not_to_have_attribute("hidden", "")
    expect(clip).to_have_attribute("hidden", "")
    expect(beta.locator("input")).to_have_value("0.0")
    fill(page, "algo.loss", "dpo2")
    expect(page.get_by_role("alert")).to_contain_text('Unknown algo.loss "dpo2": did you mean "dpo"?')
    fill(page, "algo.loss", "gspo")
    expect(page.locator(".new-run-message")).to_contain_text("valid")
    page.get_by_role("button", name="Undo all changes").click()
    expect(page.locator('.setting[data-name="algo.loss"] input')).to_have_value("ppo")


def test_settings_are_found_by_name_and_description(opened: StudioPage) -> None:
    opened.open("new_run", target="bandit")
    page = opened.page
    page.get_by_label("Find a setting").fill("nucleus sampling")
    expect(page.locator('.setting[data-name="eval.top_p"]')).to_be_visible()
    shown = page.locator("details.section .setting:visible")
    assert shown.count() == 1


def test_fork_starts_from_the_settings_of_its_parent(opened: StudioPage) -> None:
    write_run("parent", ("train.learning_rate", "0.01"))
    opened.open("run", run="parent")
    page = opened.page
    page.get_by_role("link", name="Fork").click()
    expect(page.locator("h1")).to_have_text("Fork of parent")
    expect(page.locator('.setting[data-name="train.learning_rate"] input')).to_have_value("0.01")
    page.get_by_label("Continue from its last checkpoint").check()
    expect(page.locator('.setting[data-name="model.name"] input')).to_have_value("runs/parent")


def test_stopped_run_is_resumed_from_its_page(opened: StudioPage) -> None:
    write_run("stopped")
    opened.open("run", run="stopped")
    opened.page.get_by_role("button", name="Resume").click()
    expect(opened.page.locator("tr[data-job='1']")).to_contain_text("finished")
    assert "'train', '--resume', 'runs/stopped'" in opened.queue.read_log(1, 0)[0]


def test_job_shows_its_log_and_is_removed(opened: StudioPage) -> None:
    opened.queue.add(["hello <b>there</b>"], title="a job", run=Path("runs/x"))
    assert wait_until(lambda: opened.queue.jobs()[0].status.ended)
    opened.open("jobs")
    page = opened.page
    log = page.get_by_role("button", name="Log")
    log.click()
    expect(page.locator(".log")).to_have_text("['hello <b>there</b>']\n")
    expect(page.get_by_role("button", name="Hide log")).to_have_attribute("aria-expanded", "true")
    page.get_by_role("button", name="Remove").click()
    expect(page.locator("main")).to_contain_text("No jobs yet.")


def test_views_of_the_studio_have_their_links_and_keys(opened: StudioPage) -> None:
    opened.open("runs")
    page = opened.page
    expect(page.locator("nav [data-view=jobs]")).to_have_text("Jobs")
    page.keyboard.press("5")
    expect(page.locator("h1")).to_have_text("Jobs")
    page.keyboard.press("n")
    expect(page.locator("h1")).to_have_text("New run")
    expect(page.locator("nav [data-view=jobs]")).to_have_attribute("aria-current", "page")


def test_episode_is_labelled_by_key_and_counted_on_the_run_page(opened: StudioPage) -> None:
    write_run("played")
    write_episode("played")
    opened.open("trajectory", run="played", number=0)
    page = opened.page
    good, bad = (page.get_by_role("button", name=name, exact=True) for name in ("Good", "Bad"))
    expect(good).to_be_enabled()
    page.keyboard.press("y")
    expect(good).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("x")
    expect(bad).to_have_attribute("aria-pressed", "true")
    expect(good).to_have_attribute("aria-pressed", "false")
    page.reload()
    expect(bad).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("y")
    expect(page.locator(".labels")).to_contain_text("Labelled good")
    opened.open("run", run="played")
    expect(page.locator("main")).to_contain_text("1 good, 0 bad, in runs/played/labels.jsonl.")
    page.get_by_role("link", name="Fine-tune on the good ones").click()
    expect(page.get_by_role("combobox", name="by", exact=True)).to_have_value("sft")
    wanted = parse_qs(page.url.partition("?")[2])
    assert wanted["set"] == ["sft.demos=runs/played/labels.jsonl", "model.name=runs/played"]
