import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from jinja2 import UndefinedError

from turnwise.core.errors import UserError
from turnwise.pictures.image import PNG_SIGNATURE
from turnwise.report.episodes import MAX_SHOWN_IMAGE_BYTES, choose_from_file, choose_from_index
from turnwise.report.html_report import TEMPLATES, render_report, write_report
from turnwise.report.run_report import read_flat_settings

LAKE = {"rows": [["ice", "player"], ["goal", "hole"]], "caption": "", "info": {}}
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202eevil"
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Reader(HTMLParser):
    """Parses a page into elements, attributes and text, and checks that every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def turn(content: str = "<answer>Down</answer>", **changes: Any) -> dict[str, Any]:
    return {
        "context": "You see a lake.",
        "message": {"role": "assistant", "content": content},
        "reward": 0.0,
        "turn_reward": 0.25,
        "advantages": [0.5, -0.25],
        "invalid": False,
        "stop": "eos",
        "picture": LAKE,
        **changes,
    }


def episode(seed: int = 1, status: str = "succeeded", reward: Any = 1.0, **changes: Any) -> dict[str, Any]:
    task = {"env": "frozen_lake", "seed": seed, "split": "train", "params": {}}
    row = {"step": 1, "group": 0, "member": 0, "task": task, "status": status, "reward": reward, "tokens": 8}
    return {**row, "start": LAKE, "turns": [turn()], **changes}


def lines(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def make_run(path: Path, episodes: dict[int, list[dict[str, Any]]], *, steps: int = 30) -> Path:
    """Write a run folder with these episodes by step."""
    folder = path / "runs" / "lake"
    (folder / "trajectories").mkdir(parents=True)
    (folder / "config.toml").write_text('[env]\nkind = "frozen_lake"\n[train]\nsteps = 40\n[rollout]\ngroups = 8\n')
    evaluations = [
        {"step": step, "eval/name": name, "eval/success": rate, "eval/success_low": rate - 0.1,
         "eval/success_high": rate + 0.1, "eval/episodes": 64, "eval/reward": rate, "time/total_s": 99.0}
        for step, name, rate in ((0, "before", 0.2), (steps, "after", 0.8))
    ]  # fmt: skip
    training = [
        {"step": step, "rollout/success": step / steps, "rollout/episodes": 64.0, "rollout/sampled_tokens": 1000.0,
         "train/entropy": 2.0 / step, "train/grad_norm": 0.5, "time/total_s": 2.0}
        for step in range(1, steps + 1)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_bytes(lines([evaluations[0], *training, evaluations[1]]))
    index = []
    for step, rows in episodes.items():
        offset, written = 0, b""
        for row in rows:
            line = json.dumps(row).encode()
            index.append({"step": step, "group": 0, "member": 0, "environment": row["task"]["env"],
                          "seed": row["task"]["seed"], "status": row["status"], "reward": row["reward"],
                          "offset": offset, "length": len(line)})  # fmt: skip
            written += line + b"\n"
            offset += len(line) + 1
        (folder / "trajectories" / f"step_{step:06d}.jsonl").write_bytes(written)
    (folder / "trajectories" / "index.jsonl").write_bytes(lines(index))
    return folder


def test_run_report_has_all_sections(tmp_path: Path) -> None:
    folder = make_run(tmp_path, {30: [episode(1), episode(2, "failed", 0.0)]})
    (folder / "alarms.jsonl").write_bytes(lines([{"step": 12, "text": "entropy fell to a tenth"}]))
    (folder / "summary.json").write_text("{}")
    page = Reader(render_report(folder))
    for expected in (
        "finished",
        "20.0 %",
        "80.0 %",
        "70.0 to 90.0 %",
        "1:00",
        "30.0k",
        "1920",
        "entropy fell to a tenth",
    ):
        assert expected in page.text, expected
    assert "rollout.groups" in page.text and "env.kind" in page.text
    assert "frozen_lake, seed 1" in page.text and "frozen_lake, seed 2" in page.text
    assert "advantage 0.125" in page.text and "reward 0.250" in page.text
    assert (
        page.tags.count("svg") == 1 + 2 + 4
    )  # the learning curve, two metric charts, two states of each of two episodes


def test_run_report_loads_and_runs_nothing(tmp_path: Path) -> None:
    folder = make_run(tmp_path, {30: [episode(turns=[turn(HOSTILE, context=HOSTILE)], status=HOSTILE)]})
    (folder / "alarms.jsonl").write_bytes(lines([{"step": HOSTILE, "text": HOSTILE}]))
    (folder / "config.toml").write_text(f"[env]\nkind = {json.dumps(HOSTILE)}\n")
    text = render_report(folder)
    page = Reader(text)
    assert not {"script", "img", "iframe", "link", "object", "a"} & set(page.tags)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert not [value for name, value in page.attributes if name in ("href", "src", "style")]
    urls = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert urls <= {"http://www.w3.org/2000/svg"}
    assert [value for name, value in page.attributes if name == "content" and "default-src 'none'" in str(value)]
    assert page.text.count("<script>alert(1)</script>") >= 3  # as text
    assert "\x1b" not in text and "\u202e" not in text and "␛[31m⟦U+202E⟧evil" in page.text


def test_report_shortens_long_texts_and_accepts_surrogates(tmp_path: Path) -> None:
    folder = make_run(tmp_path, {1: [episode(turns=[turn("\ud800" + "y" * 100_000)])]})
    path = write_report(folder)
    assert path == folder / "report.html"
    assert path.stat().st_size < 200_000
    assert "more characters" in path.read_text(encoding="utf-8")


def test_report_shows_images_and_notes_for_missing_ones(tmp_path: Path) -> None:
    names = [letter * 32 for letter in "abcd"]
    shown = turn(images=[{"hash": name, "start": 0, "end": 1} for name in (*names, "../../../secret")])
    folder = make_run(tmp_path / "r", {30: [episode(turns=[shown])]})
    (folder / "images").mkdir()
    (folder / "images" / f"{names[0]}.png").write_bytes(PNG_SIGNATURE + b"pixels")
    (folder / "images" / f"{names[1]}.png").write_bytes(b"<svg onload=alert(1)>")
    (folder / "images" / f"{names[2]}.png").write_bytes(PNG_SIGNATURE + bytes(MAX_SHOWN_IMAGE_BYTES))
    text = render_report(folder)
    assert text.count("<img ") == 1
    assert f'src="data:image/png;base64,{base64.b64encode(PNG_SIGNATURE + b"pixels").decode()}"' in text
    assert f"image {names[3]} is not in the run folder" in text and text.count("too large to show") == 2
    assert "secret" not in text


def test_report_marks_thinking(tmp_path: Path) -> None:
    folder = make_run(tmp_path, {1: [episode(turns=[turn("left is <b>ice</b></think><answer>Left</answer>")])]})
    text = render_report(folder)
    assert '<span class="think">left is &lt;b&gt;ice&lt;/b&gt;&lt;/think&gt;</span>&lt;answer&gt;Left' in text


def test_report_of_an_unfinished_run_shows_its_progress(tmp_path: Path) -> None:
    folder = make_run(tmp_path, {})
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 31, "rollout/succ')
    page = Reader(render_report(folder))
    assert "not finished" in page.text and "30 of 40" in page.text


def test_report_tolerates_broken_files(tmp_path: Path) -> None:
    folder = make_run(tmp_path, {1: [episode()]})
    (folder / "trajectories" / "index.jsonl").write_bytes(
        lines([{"step": 1, "offset": -5, "length": 3}, {"step": 1, "offset": 0, "length": 10**15, "status": "x"}, 7])
    )
    (folder / "metrics.jsonl").write_bytes(
        b'\xff\xfe\n[1]\n{"step": "x"}\n{"step": 1, "rollout/success": "NaN", "train/entropy": 1e999}\n'
        b'{"step": 2, "train/grad_norm": -1e308}\n{"step": 3, "train/grad_norm": 1e308}\n' + b"[" * 100_000 + b"\n"
    )
    (folder / "config.toml").write_bytes(b"\xff")
    (folder / "summary.json").write_text("[")
    (folder / "alarms.jsonl").write_text("null\n")
    Reader(render_report(folder))


def test_choose_from_index_takes_best_and_worst_of_last_steps() -> None:
    index = [
        {"step": step, "environment": "e", "seed": seed, "status": status, "reward": reward}
        for step, seed, status, reward in [
            (1, 0, "succeeded", 99.0),  # too old
            (11, 1, "succeeded", 1.0),
            (12, 1, "succeeded", 2.0),  # the same task
            (13, 2, "succeeded", 3.0),
            (14, 3, "succeeded", 0.5),
            (15, 4, "succeeded", 0.75),
            (15, 5, "failed", -1.0),
            (15, 6, "truncated_turns", 0.0),
        ]
    ]
    index.append(index[-1] | {"evaluation": "after", "seed": 7, "status": "succeeded", "reward": 9.0})
    good, bad = choose_from_index(index)
    assert [row["reward"] for row in good] == [3.0, 2.0, 0.75]
    assert [row["reward"] for row in bad] == [-1.0, 0.0]


def test_choose_from_index_repeats_tasks_if_there_are_few() -> None:
    index = [{"step": 1, "environment": "e", "seed": 0, "status": "failed", "reward": float(n)} for n in range(5)]
    assert [row["reward"] for row in choose_from_index(index)[1]] == [0.0, 1.0, 2.0]


def test_choose_from_file_takes_best_and_worst(tmp_path: Path) -> None:
    rows = [episode(seed, "succeeded" if seed % 2 else "failed", float(seed)) for seed in range(20)]
    (tmp_path / "m.jsonl").write_bytes(lines(rows) + b"nonsense\n" + b'{"half')
    good, bad, succeeded, played = choose_from_file(tmp_path / "m.jsonl")
    assert [row["reward"] for row in good] == [19.0, 17.0, 15.0]
    assert [row["reward"] for row in bad] == [0.0, 2.0, 4.0]
    assert (succeeded, played) == (10, 20)


def make_evaluation(folder: Path, name: str = "tiny") -> Path:
    (folder / "trajectories").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "models" / "tiny.toml").write_text("seed = 3\n")
    models = f'models = [{{ name = {json.dumps(name)}, label = "the <b>tiny</b> one", source = "tiny" }}]\n'
    (folder / "evaluation.toml").write_text(
        f'environment = "sokoban"\nsplit = "test"\nseeds = "0-9"\ntries = 1\n{models}'
    )
    (folder / "trajectories" / "tiny.jsonl").write_bytes(lines([episode(1), episode(2, "failed", 0.0)]))
    return folder


def test_evaluation_report_has_all_sections(tmp_path: Path) -> None:
    folder = make_evaluation(tmp_path / "eval")
    result = {"label": "the <b>tiny</b> one", "success": 0.5, "success_low": 0.25, "success_high": 0.75, "reward": 1.0,
              "episodes": 2, "dropped": 0, "turns": 1.0, "invalid": 0.0, "sampled_tokens": 8.0}  # fmt: skip
    pair = {"first": "a", "second": "b", "success": 0.125, "low": -0.1, "high": 0.3, "p": 0.04, "test": "McNemar"}
    summary = {"finished": True, "tasks": 10, "models": [result, {"label": "broken"}], "comparisons": [pair]}
    (folder / "summary.json").write_text(json.dumps(summary))
    page = Reader(render_report(folder))
    for expected in (
        "50.0 %",
        "25.0 %",
        "75.0 %",
        "+12.5",
        "0.0400",
        "1 of 2 episodes succeeded",
        "the <b>tiny</b> one",
    ):
        assert expected in page.text, expected
    assert "finished" in page.text and "not finished" not in page.text
    assert "b" not in page.tags
    (folder / "summary.json").unlink()
    assert "not finished" in Reader(render_report(folder)).text


def test_evaluation_report_reads_no_file_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_bytes(lines([episode(77)]))
    folder = make_evaluation(tmp_path / "eval", name="../../secret")
    assert "seed 77" not in render_report(folder)


def test_render_report_refuses_other_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a run nor an evaluation"):
        render_report(tmp_path)


def test_report_command_finds_a_run_by_name_and_writes_to_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from turnwise.cli.view import report_app

    make_run(tmp_path, {1: [episode()]})
    monkeypatch.chdir(tmp_path)
    report_app(["lake"], result_action="return_value")
    assert (tmp_path / "runs/lake/report.html").exists()
    report_app(["runs/lake", "--out", "deep/er.html"], result_action="return_value")
    assert (tmp_path / "deep/er.html").read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out.splitlines() == ["wrote runs/lake/report.html", "wrote deep/er.html"]
    with pytest.raises(UserError, match='No run or evaluation "laek" here or in runs/: did you mean "lake"'):
        report_app(["laek"], result_action="return_value")


def render(text: str) -> str:
    return TEMPLATES.from_string("{{ text }}").render(text=text)


def test_templates_escape_and_reveal_every_value() -> None:
    assert render("a\n\tb<>&\"'\x00\x7f\u200b") == "a\n\tb&lt;&gt;&amp;&#34;&#39;␀␡⟦U+200B⟧"
    assert render("👩‍🚀 漢字") == "👩‍🚀 漢字"


def test_templates_raise_on_a_missing_value() -> None:
    with pytest.raises(UndefinedError):
        TEMPLATES.from_string("{{ text }}").render()


def make_hostile(value: Any) -> Any:
    """Replace every text in a row by hostile text; statuses and stop reasons included."""
    if isinstance(value, dict):
        return {key: make_hostile(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [make_hostile(inner) for inner in value]
    return HOSTILE if isinstance(value, str) else value


def assert_harmless(text: str) -> None:
    page = Reader(text)
    assert "<script>alert(1)</script>" in page.text
    assert not {"script", "img", "iframe", "link", "object", "a", "b"} & set(page.tags)
    assert not any(name.startswith("on") or name in ("href", "src", "style") for name, _ in page.attributes)
    assert "\x1b" not in text and "\u202e" not in text


def test_run_report_escapes_hostile_text_in_every_field(tmp_path: Path) -> None:
    folder = make_run(tmp_path / HOSTILE.replace("/", ""), {30: [make_hostile(episode())]})
    metrics = [{**row, "eval/name": HOSTILE} for row in map(json.loads, (folder / "metrics.jsonl").open())]
    (folder / "metrics.jsonl").write_bytes(lines(metrics))
    (folder / "alarms.jsonl").write_bytes(lines([{"step": HOSTILE, "text": HOSTILE}]))
    (folder / "config.toml").write_text(f"[{json.dumps(HOSTILE)}]\n{json.dumps(HOSTILE)} = {json.dumps(HOSTILE)}\n")
    assert_harmless(render_report(folder))


def test_evaluation_report_escapes_hostile_text_in_every_field(tmp_path: Path) -> None:
    folder = make_evaluation(tmp_path / "eval")
    plan = {"environment": HOSTILE, "split": HOSTILE, "seeds": HOSTILE, "tries": HOSTILE}
    model = {"name": "tiny", "label": HOSTILE}
    (folder / "evaluation.toml").write_text(tomli_w.dumps({**plan, "models": [model]}))
    (folder / "models" / "tiny.toml").write_text(tomli_w.dumps({HOSTILE: HOSTILE}))
    (folder / "trajectories" / "tiny.jsonl").write_bytes(lines([make_hostile(episode())]))
    pair = {"first": HOSTILE, "second": HOSTILE, "success": 0.1, "low": 0.0, "high": 0.2, "p": 0.5, "test": HOSTILE}
    result = {"label": HOSTILE, "success": 0.5, "success_low": 0.25, "success_high": 0.75}
    (folder / "summary.json").write_text(json.dumps({"tasks": HOSTILE, "models": [result], "comparisons": [pair]}))
    assert_harmless(render_report(folder))


def test_settings_of_thousands_of_levels_are_cut(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"{'.'.join(['deep'] * 2000)} = 1\n[train]\nsteps = 3\n")
    settings = read_flat_settings(file)
    assert settings.pop("train.steps") == "3"
    assert [(key.count("."), value) for key, value in settings.items()] == [(32, "...")]
