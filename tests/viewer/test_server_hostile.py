"""Broken files, files that change while they are read, and requests for files outside the folder."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_for_tests import CONFIG, add_episode, ask, client, episode, get, line, make_evaluation, make_run, turn

from turnwise.record.jsonl_follower import LineFollower
from turnwise.viewer.api import make_app
from turnwise.viewer.table import TableBuilder

SECRET = "content outside the folder"
NAMES = ("config", "metrics", "keys", "alarms", "trajectories")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder of runs with a run `a` and links to the run `secret` outside it."""
    outside = make_run(tmp_path / "secret", [episode(turns=[turn(SECRET)])], [{"step": 1, SECRET: 1.0}])
    (outside / "config.toml").write_text(f'{CONFIG}\n[x]\ny = "{SECRET}"\n')
    (tmp_path / "runs-too").mkdir()
    shutil.copytree(outside, tmp_path / "runs-too/a")
    runs = tmp_path / "runs"
    make_run(runs / "a", [episode()], [{"step": 1}])
    (runs / "linked").symlink_to(outside)
    (runs / "circle").symlink_to(runs / "circle")
    (runs / "half").mkdir()
    (runs / "half/config.toml").symlink_to(outside / "config.toml")
    (runs / "half/metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    (runs / "half/trajectories").symlink_to(outside / "trajectories")
    yield runs


@pytest.mark.parametrize(
    "run",
    [
        "",
        ".",
        "..",
        "../secret",
        "a/../../secret",
        "a/..",
        "./../secret",
        "%2e%2e/secret",
        "..%2fsecret",
        "..\\secret",
        "../runs-too/a",
        "linked",
        "linked/.",
        "circle",
        "a\0",
        "a\0/../../secret",
        "a/trajectories",
        "a/config.toml",
        "x" * 5000,
        "~",
        "file:///etc",
        "//etc",
        "\udcff",
        "/",
    ],
)
def test_runs_outside_the_folder_are_not_read(root: Path, run: str) -> None:
    asked = client(root)
    for sent in (run, f"{root}/{run}"):
        for name in NAMES:
            raw = quote(sent, safe="", errors="surrogateescape")
            response = asked.get(f"/api/{name}?run={raw}")
            assert response.status_code in (400, 404), (name, sent)
            assert SECRET not in response.text
            assert list(response.json()) == ["error"]


def test_absolute_paths_are_refused(root: Path) -> None:
    assert get(root, "config", run=str(root / "a")).status_code == 404


def test_links_out_of_a_run_are_not_followed(root: Path) -> None:
    for name in NAMES:
        assert SECRET not in get(root, name, run="half").text
    assert ask(root, "metrics", run="half")["rows"] == 0
    assert ask(root, "trajectories", run="half")["total"] == 0
    assert "linked" not in [row["id"] for row in ask(root, "runs")["runs"]]


def test_linked_trajectory_file_is_not_followed(root: Path) -> None:
    shown = root / "a/trajectories/step_000001.jsonl"
    shown.unlink()
    shown.symlink_to(root.parent / "secret/trajectories/step_000001.jsonl")
    response = get(root, "trajectory", run="a", number=0)
    assert (response.status_code, SECRET in response.text) == (404, False)


def test_model_names_cannot_name_files_outside(root: Path) -> None:
    folder = make_evaluation(root / "e", {"m": []})
    names = ["../../../secret/trajectories/step_000001", "/etc/passwd", "", "..", "m\\u0000", "m"]
    listed = "".join(f'[[models]]\nname = "{name}"\n' for name in names)
    (folder / "evaluation.toml").write_text(listed)
    (folder / "models/..toml").write_text("x = 1\n")
    asked = client(root)
    assert ask(asked, "trajectories", run="e")["total"] == 0
    assert SECRET not in get(asked, "config", run="e").text
    assert [row["id"] for row in ask(asked, "runs")["runs"]] == ["a", "e"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../api.py",
        "/static/%2e%2e/api.py",
        "/static/..%2fapi.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..\\api.py",
        "/static/%00",
        "/../../etc/passwd",
        "/etc/passwd",
        "/docs",
        "/openapi.json",
        "/api",
        "/api/nothing",
        "/api/../static/index.html",
    ],
)
def test_only_static_files_are_served(root: Path, path: str) -> None:
    response = client(root).get(path)
    assert response.status_code in (404, 400) or response.url.path.startswith("/static/index.html")
    assert "def make_app" not in response.text
    assert "root:" not in response.text


def test_pipes_are_not_read(root: Path) -> None:
    (root / "a/metrics.jsonl").unlink()
    os.mkfifo(root / "a/metrics.jsonl")
    os.mkfifo(root / "a/summary.json")
    (root / "a/.lock").mkdir()
    assert ask(root, "metrics", run="a")["rows"] == 0
    (row,) = ask(root, "runs")["runs"]
    assert (row["id"], row["step"], row["status"]) == ("a", None, "stopped")


def test_api_allows_only_get(root: Path) -> None:
    asked = client(root)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        response = asked.request(method, "/api/runs")
        assert response.status_code == 405
        assert "access-control-allow-origin" not in response.headers


BROKEN = [b"\n", b"nonsense\n", b'{"step":1\n', b"[1]\n", b'{"step":NaN}\n', b'{"step":"\xff"}\n', b"[" * 9000 + b"\n"]


def test_broken_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", [episode(1), episode(2)], [{"step": 1, "x": 1.0}])
    index = folder / "trajectories/index.jsonl"
    first, second = index.read_bytes().splitlines(keepends=True)
    sound = json.loads(first)
    wrong = [
        {"step": "1"},
        {"step": 2**70},
        {"reward": None},
        {"status": 3},
        {"environment": "x" * 5000},
        {"turns": None},
    ]
    bad = BROKEN + [line({**sound, **each}) for each in wrong] + [line({"step": 1})]
    index.write_bytes(first + b"".join(bad) + second)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"".join(BROKEN) + line({"step": 2, "x": 2.0, "deep": {"er": [1]}, "big": 10**400, "flag": True}))
    asked = client(tmp_path)
    answer = ask(asked, "trajectories", run="a")
    assert ([row["step"] for row in answer["rows"]], answer["broken"]) == ([1, 2], len(bad))
    assert ask(asked, "trajectory", run="a", number=answer["rows"][1]["number"])["row"]["step"] == 2
    metrics = ask(asked, "metrics", run="a")
    assert (metrics["columns"]["x"], metrics["broken"]) == ([1.0, 2.0], len(BROKEN))
    assert (metrics["columns"]["big"], metrics["columns"]["flag"]) == ([None, None], [None, 1.0])
    assert ask(asked, "runs")["runs"][0]["broken"] == len(BROKEN)


def test_broken_trajectory_gets_a_response(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    add_episode(folder, episode(1), raw=b'{"turns": nonsense\n')
    add_episode(folder, episode(2), raw=line(episode(2, turns=[turn("caf\xff")])).replace("ÿ".encode(), b"\xff"))
    add_episode(folder, episode(3), raw=b'{"turns": 5, "start": {"rows": 7}}\n')
    add_episode(
        folder, episode(4), raw=b'{"turns": [{"context": "\\ud800 half", "context_ids": ["x", -1, 1e99]}, 3]}\n'
    )
    add_episode(folder, episode(5), raw=b'{"turns": [], "reward": NaN}\n')
    asked = client(tmp_path)
    for number in (0, 4):
        assert get(asked, "trajectory", run="a", number=number).status_code == 404
    repaired = ask(asked, "trajectory", run="a", number=1)
    assert (repaired["repaired"], repaired["row"]["turns"][0]["context"]) == (True, "caf\ufffd")
    assert ask(asked, "trajectory", run="a", number=2)["row"]["turns"] == 5
    assert ask(asked, "trajectory", run="a", number=3)["row"]["turns"][0]["context"] == "\ud800 half"
    assert [row["number"] for row in ask(asked, "trajectories", run="a", text="CAF")["rows"]] == [1]
    assert [row["number"] for row in ask(asked, "trajectories", run="a", text="half")["rows"]] == [3]


def test_run_with_broken_toml_is_listed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    (folder / "config.toml").write_bytes(b"\xff = [")
    (row,) = ask(tmp_path, "runs")["runs"]
    assert (row["environment"], row["broken"]) == (None, 1)
    assert get(tmp_path, "config", run="a").status_code == 400
    (folder / "config.toml").write_text('env = 3\nalgo = []\ntrain = "x"\nwhen = 2020-01-01\n')
    assert ask(tmp_path, "runs")["runs"][0]["algorithm"] is None
    assert ask(tmp_path, "config", run="a")["settings"]["when"] == "2020-01-01"


def test_html_in_names_is_returned_as_json(tmp_path: Path) -> None:
    name = "<script>alert(1)<_script> & \"'"
    make_run(tmp_path / name, [episode(status="<img src=x onerror=alert(1)>")], [{"step": 1, "<b>\u202e": 1.0}])
    asked = client(tmp_path)
    assert ask(asked, "runs")["runs"][0]["id"] == name
    assert ask(asked, "trajectories", run=name)["statuses"] == ["<img src=x onerror=alert(1)>"]
    assert "<b>\u202e" in ask(asked, "keys", run=name)["keys"]
    missing = get(asked, "config", run="<script>alert(1)</script>")
    assert missing.headers["content-type"] == "application/json"
    assert missing.headers["x-content-type-options"] == "nosniff"


def test_giant_lines_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.record.jsonl_follower.CHUNK", 1 << 16)
    folder, asked = make_run(tmp_path / "a", metrics=[{"step": 1}]), client(tmp_path)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "x": "' + b"y" * (3 << 20))
    assert ask(asked, "metrics", run="a")["columns"]["step"] == [1]
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'"}\n' + line({"step": 3}))
    answer = ask(asked, "metrics", run="a")
    assert (answer["columns"]["step"], answer["broken"]) == ([1, 3], 1)


def test_trajectory_with_wrong_bounds_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", [episode()])
    entry = json.loads((folder / "trajectories/index.jsonl").read_bytes())
    odd = [{"length": 2**40}, {"length": 0}, {"offset": 2**60}, {"length": entry["length"] + 50}, {"step": 10**15}]
    odd += [{"evaluation": "../../../secret"}, {"evaluation": 7}, {"evaluation": "x" * 2000}]
    (folder / "trajectories/index.jsonl").write_bytes(b"".join(line({**entry, **each}) for each in odd))
    for number in range(len(odd)):
        response = get(tmp_path, "trajectory", run="a", number=number)
        assert response.status_code in (400, 404)
        assert len(response.json()["error"]) < 300
    assert ask(tmp_path, "trajectories", run="a", text="x")["rows"] == []


def test_trajectory_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "a", [episode()])
    monkeypatch.setattr("turnwise.viewer.trajectories.MAX_TRAJECTORY", 100)
    assert "too large" in get(tmp_path, "trajectory", run="a", number=0).json()["error"]


def test_long_token_lists_are_returned_whole(tmp_path: Path) -> None:
    ids = list(range(150_000))
    long = turn(action_ids=ids, action_logprobs=[-0.123456789] * len(ids), advantages=None)
    folder = make_run(tmp_path / "a", [episode(turns=[long])])
    assert (folder / "trajectories/step_000001.jsonl").stat().st_size > 2 << 20
    assert ask(tmp_path, "trajectory", run="a", number=0)["row"]["turns"] == [long]


def test_metrics_keep_a_bounded_number_of_names(tmp_path: Path) -> None:
    make_run(tmp_path / "a", metrics=[{"step": step, f"name {step}": 1.0} for step in range(3000)])
    answer = ask(tmp_path, "metrics", run="a")
    assert len(answer["columns"]) == 1000
    assert answer["columns"]["step"] == list(range(3000))


def test_deleted_run_disappears(tmp_path: Path) -> None:
    folder, asked = make_run(tmp_path / "a", [episode()], [{"step": 1}]), client(tmp_path)
    assert ask(asked, "trajectories", run="a")["total"] == 1
    shutil.rmtree(folder / "trajectories")
    assert get(asked, "trajectory", run="a", number=0).status_code == 404
    assert ask(asked, "trajectories", run="a")["total"] == 0
    shutil.rmtree(folder)
    for name in NAMES:
        assert get(asked, name, run="a").status_code == 404
    assert ask(asked, "runs")["runs"] == []
    make_run(tmp_path / "a", [episode(5), episode(6)], [{"step": 5}, {"step": 6}])
    assert ask(asked, "trajectories", run="a")["steps"] == [5, 6]
    assert ask(asked, "metrics", run="a", after=1)["columns"]["step"] in ([5, 6], [6])


def test_truncated_index_is_read_again(tmp_path: Path) -> None:
    folder, asked = make_run(tmp_path / "a", [episode(1), episode(2), episode(3)]), client(tmp_path)
    assert ask(asked, "trajectories", run="a")["steps"] == [1, 2, 3]
    index = folder / "trajectories/index.jsonl"
    kept = index.read_bytes().splitlines(keepends=True)[0]
    index.write_bytes(kept)
    assert ask(asked, "trajectories", run="a")["steps"] == [1]
    (folder / "trajectories/step_000002.jsonl").unlink()
    for member in range(4):
        add_episode(folder, episode(2, 7, member))
    assert [row["group"] for row in ask(asked, "trajectories", run="a")["rows"]] == [0, 7, 7, 7, 7]


def test_replaced_index_that_is_longer_is_read_again(tmp_path: Path) -> None:
    """Between two requests the file was replaced by a longer one."""
    folder, asked = make_run(tmp_path / "a", [episode(1), episode(2)]), client(tmp_path)
    ask(asked, "trajectories", run="a")
    shutil.rmtree(folder / "trajectories")
    make_run(folder, [episode(1, group, member=3) for group in range(5)])
    rows = ask(asked, "trajectories", run="a")["rows"]
    assert [(row["group"], row["member"]) for row in rows] == [(group, 3) for group in range(5)]


def test_restarted_evaluation_is_read_again(tmp_path: Path) -> None:
    folder, asked = make_evaluation(tmp_path / "e", {"m": [episode(0, 1), episode(0, 2)]}), client(tmp_path)
    assert ask(asked, "trajectories", run="e")["total"] == 2
    (folder / "trajectories/m.jsonl").write_bytes(line(episode(0, 9)))
    assert [row["group"] for row in ask(asked, "trajectories", run="e")["rows"]] == [9]
    (folder / "trajectories/m.jsonl").unlink()
    assert ask(asked, "trajectories", run="e")["total"] == 0


def test_store_evicts_the_least_recently_viewed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.viewer.store.MAX_RUNS", 2)
    for name in "abc":
        make_run(tmp_path / name, metrics=[{"step": 1}])
    asked = client(tmp_path)
    first = {name: ask(asked, "metrics", run=name)["generation"] for name in "abac"}
    again = {name: ask(asked, "metrics", run=name)["generation"] for name in "acb"}
    assert [first[name] == again[name] for name in "acb"] == [True, True, False]


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="No folder"):
        make_app(tmp_path / "none")


@given(st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")), max_size=8), st.data())
def test_line_follower_returns_each_short_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], data: st.DataObject
) -> None:
    """Truncated anywhere between two reads, with chunks smaller than lines: the same lines with their offsets."""
    path = tmp_path_factory.mktemp("grows") / "file"
    text = b"".join(each + b"\n" for each in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    follower, found = LineFollower(max_line=8), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnwise.record.jsonl_follower.CHUNK", data.draw(st.integers(1, 20)))
        for end in [*cuts, len(text)]:
            path.write_bytes(text[:end])
            with path.open("rb") as file:
                assert not follower.is_replaced(file)
                for block in follower.read_blocks(file):
                    for number, (each, offset) in enumerate(zip(block.lines, block.offsets(), strict=True)):
                        assert text[offset:].startswith(each + b"\n")
                        found[block.number + number] = each
    assert found == {number: each for number, each in enumerate(lines) if len(each) <= 8}
    assert follower.too_long == sum(len(each) > 8 for each in lines)


@given(st.lists(st.sampled_from(["sound", "no step", "step is text", "no reward"]), max_size=40))
def test_table_builder_drops_only_broken_rows(kinds: list[str]) -> None:
    sound = dict.fromkeys(("step", "group", "member", "seed", "tokens", "offset", "length"), 1)
    rows = []
    for number, kind in enumerate(kinds):
        row = {**sound, "number": number, "reward": 0.5, "environment": "e", "status": "s"}
        row |= {"step": "1"} if kind == "step is text" else {}
        rows.append({name: value for name, value in row.items() if kind != f"no {name}"})
    table = TableBuilder()
    table.add(rows[:20])
    table.add(rows[20:])
    expected = [number for number, kind in enumerate(kinds) if kind == "sound"]
    assert table.table().columns["number"].tolist() == expected
    assert table.broken == len(kinds) - len(expected)
