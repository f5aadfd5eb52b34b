"""Responses of the API for intact runs."""

import fcntl
import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from httpx2 import Response
from server_for_tests import add_episode, ask, client, episode, get, line, make_evaluation, make_run, turn

from turnwise.files.disk import FolderLock
from turnwise.pictures.image import PNG_SIGNATURE
from turnwise.pictures.picture import draw_picture_svg

ROWS = [
    {"step": 0, "time/warmup_s": 1.5},
    {"step": 0, "eval/name": "before", "eval/success": 0.1, "time/total_s": 50.0},
    {"step": 1, "rollout/success": 0.2, "rollout/sampled_tokens": 30.0, "time/total_s": 2.0},
    {"step": 2, "rollout/success": 0.4, "rollout/sampled_tokens": 40.0, "time/total_s": 3.0, "train/kl": None},
    {"step": 2, "eval/name": "validation", "eval/success": 0.5, "eval/success_low": 0.3, "eval/success_high": 0.7},
]
PICTURE = {"rows": [["frozen", "hole"], ["player", "goal"]], "caption": "", "info": {}}


def test_server_does_not_import_torch() -> None:
    modules = "turnwise.viewer.api, turnwise.viewer.server"
    code = f"import sys, {modules}; assert not {{'torch', 'transformers'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_image_is_served_by_hash_and_nothing_else(tmp_path: Path) -> None:
    folder, asked = make_run(tmp_path / "a"), client(tmp_path)
    (folder / "images").mkdir()
    good, broken, outside = "ab" * 16, "cd" * 16, "ef" * 16
    (folder / "images" / f"{good}.png").write_bytes(PNG_SIGNATURE + b"pixels")
    (folder / "images" / f"{broken}.png").write_bytes(b"<script>")
    (tmp_path.parent / "secret.png").write_bytes(PNG_SIGNATURE)
    (folder / "images" / f"{outside}.png").symlink_to(tmp_path.parent / "secret.png")

    def fetch(name: str) -> Response:
        return asked.get("/api/image", params={"run": "a", "hash": name})

    served = fetch(good)
    assert (served.status_code, served.headers["content-type"]) == (200, "image/png")
    assert served.content == PNG_SIGNATURE + b"pixels"
    for name in (broken, outside, "00" * 16, "../config.toml", "", good.upper(), f"{good}/.."):
        refused = fetch(name)
        assert refused.status_code == 404 and "error" in refused.json()


def test_runs_row_shows_settings_and_metrics(tmp_path: Path) -> None:
    make_run(tmp_path / "sweep/a", metrics=ROWS)
    answer = ask(tmp_path, "runs")
    (row,) = answer["runs"]
    assert answer["root"] == tmp_path.name
    assert row.pop("updated") > 1e9
    assert row == {
        "id": "sweep/a",
        "kind": "run",
        "environment": "frozen_lake",
        "model": "tiny",
        "algorithm": "gae",
        "status": "stopped",
        "step": 2,
        "steps": 10,
        "success": 0.5,
        "success_low": 0.3,
        "success_high": 0.7,
        "wall_s": 6.5,
        "tokens": 70,
        "broken": 0,
    }


def test_run_status_follows_lock_and_summary(tmp_path: Path) -> None:
    folder, asked = make_run(tmp_path / "a"), client(tmp_path)
    lock = FolderLock(folder)
    assert ask(asked, "runs")["runs"][0]["status"] == "running"
    lock.release()
    assert ask(asked, "runs")["runs"][0]["status"] == "stopped"
    (folder / "summary.json").write_text('{"steps": 10}')
    assert ask(asked, "runs")["runs"][0]["status"] == "finished"


def test_resumed_run_is_running(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    (folder / "summary.json").write_text('{"steps": 10}')
    lock = FolderLock(folder)
    (folder / "summary.json").touch()

    os.utime(folder / "summary.json", (1, 1))
    assert ask(tmp_path, "runs")["runs"][0]["status"] == "running"
    lock.release()
    assert ask(tmp_path, "runs")["runs"][0]["status"] == "finished"


def test_viewer_does_not_hold_the_lock_of_a_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    (folder / ".lock").touch()
    ask(tmp_path, "runs")
    with (folder / ".lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_runs_rows_distinguish_sft_and_evaluations(tmp_path: Path) -> None:
    make_run(tmp_path / "sft-run", metrics=[{"step": 0, "sft/digest": "ab"}, {"step": 1, "train/answer_tokens": 7}])
    folder = make_evaluation(tmp_path / "compared", {"b": [], "a": []})
    models = [{"label": "b", "success": 0.25, "success_low": 0.1, "success_high": 0.4, "episodes": 4}, {"label": "a"}]
    (folder / "summary.json").write_text(json.dumps({"tasks": 4, "tries": 1, "finished": True, "models": models}))
    compared, sft_run = ask(tmp_path, "runs")["runs"]
    assert (sft_run["kind"], sft_run["algorithm"], sft_run["tokens"]) == ("sft", "sft", 7)
    assert (compared["kind"], compared["status"], compared["success"]) == ("evaluation", "finished", 0.25)
    assert (compared["models"], compared["step"], compared["steps"]) == (["b", "a"], 4, 8)


def test_config_returns_dotted_keys(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_evaluation(tmp_path / "one", {"m": []})
    make_evaluation(tmp_path / "two", {"m": [], "n": []})
    settings = ask(tmp_path, "config", run="a")["settings"]
    assert ask(tmp_path, "config", run="a")["defaults"]["train.learning_rate"] == 1e-6
    assert (settings["seed"], settings["env.params.size"], settings["train.optimizer.betas"]) == (3, 4, [0.9, 0.95])
    assert ask(tmp_path, "config", run="one")["settings"]["algo.advantage"] == "gae"
    two = ask(tmp_path, "config", run="two")["settings"]
    assert (two["evaluation.split"], two["n.algo.advantage"]) == ("test", "gae")


def test_metrics_columns_have_null_for_missing_values(tmp_path: Path) -> None:
    make_run(tmp_path / "a", metrics=ROWS)
    answer = ask(tmp_path, "metrics", run="a")
    assert (answer["rows"], answer["next"], answer["broken"]) == (5, 5, 0)
    assert answer["columns"]["step"] == [0, 0, 1, 2, 2]
    assert answer["columns"]["rollout/success"] == [None, None, 0.2, 0.4, None]
    assert answer["columns"]["eval/name"] == [None, "before", None, None, "validation"]
    assert "train/kl" not in answer["columns"]
    assert ask(tmp_path, "keys", run="a")["keys"] == sorted(answer["columns"])
    assert set(ask(tmp_path, "metrics", run="a", keys="eval/success")["columns"]) == {"step", "eval/success"}


def test_metrics_of_stored_episodes_are_named_as_of_played_ones(tmp_path: Path) -> None:
    rows = [{"step": 1, "data/success": 0.25}, {"step": 2, "data/success": 0.5, "rollout/success": 0.75}]
    make_run(tmp_path / "a", metrics=rows)
    assert ask(tmp_path, "metrics", run="a")["columns"] == {"step": [1, 2], "rollout/success": [0.25, 0.5]}


def test_metrics_returns_only_new_rows(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", metrics=ROWS)
    asked = client(tmp_path)
    first = ask(asked, "metrics", run="a")
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(line({"step": 3, "new": 1.25}) + b'{"step": 4, "ne')
    held = {"after": first["next"], "generation": first["generation"]}
    answer = ask(asked, "metrics", run="a", **held)
    assert (answer["rows"], answer["columns"]["step"], answer["columns"]["new"]) == (6, [3], [1.25])
    assert answer["columns"]["eval/name"] == [None]
    assert "reset" not in answer
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'w": 2}\n')
    assert ask(asked, "metrics", run="a", after=6)["columns"]["step"] == [4]
    nothing = ask(asked, "metrics", run="a", after=7)
    assert (nothing["columns"]["step"], "reset" in nothing) == ([], False)


def test_metrics_of_a_truncated_run_are_sent_again(tmp_path: Path) -> None:
    folder, asked = make_run(tmp_path / "a", metrics=ROWS), client(tmp_path)
    first = ask(asked, "metrics", run="a")
    assert ask(asked, "runs")["runs"][0]["tokens"] == 70
    (folder / "metrics.jsonl").write_bytes(b"".join(map(line, ROWS[:2])))
    answer = ask(asked, "metrics", run="a", after=5)
    assert (answer["reset"], answer["rows"], answer["columns"]["step"]) == (True, 2, [0, 0])
    assert [(row["step"], row["tokens"], row["success"]) for row in ask(asked, "runs")["runs"]] == [(0, None, 0.1)]
    longer = [*ROWS[:2], *({"step": step, "other": 1.0} for step in range(1, 9))]
    (folder / "metrics.jsonl").write_bytes(b"".join(map(line, longer)))
    answer = ask(asked, "metrics", run="a", after=5, generation=first["generation"])
    assert (answer["reset"], answer["columns"]["step"]) == (True, [0, 0, *range(1, 9)])


def test_alarms_skip_broken_lines(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    assert ask(tmp_path, "alarms", run="a") == {"alarms": [], "broken": 0}
    (folder / "alarms.jsonl").write_bytes(line({"step": 12, "text": "entropy fell"}) + b"nonsense\n" + b'{"step"')
    assert ask(tmp_path, "alarms", run="a") == {"alarms": [{"step": 12, "text": "entropy fell"}], "broken": 1}


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A run of two steps with two groups of two members each."""
    rows = [episode(step, group, member) for step in (1, 2) for group in (0, 1) for member in (0, 1)]
    rows[5]["reward"], rows[5]["status"] = 0.5, "truncated_turns"
    rows[6]["task"]["env"], rows[7]["task"]["env"] = "sokoban", "bandit"
    rows[3]["turns"] = [turn("nothing", "well"), turn('He said "Straße"\nand left', "ÜBER")]
    make_run(tmp_path / "a", rows)
    return tmp_path


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"step": 2}, [4, 5, 6, 7]),
        ({"step": 1, "group": 1}, [2, 3]),
        ({"seed": 201}, [6, 7]),
        ({"environment": "sokoban"}, [6]),
        ({"environment": "chess"}, []),
        ({"status": "truncated_turns"}, [5]),
        ({"reward_min": 0.5}, [1, 3, 5, 7]),
        ({"reward_min": 0.1, "reward_max": 0.9}, [5]),
        ({"reward_max": 0}, [0, 2, 4, 6]),
        ({"sort": "-reward"}, [1, 3, 7, 5, 0, 2, 4, 6]),
        ({"sort": "reward"}, [0, 2, 4, 6, 5, 1, 3, 7]),
        ({"sort": "-number", "limit": 3}, [7, 6, 5]),
        ({"sort": "-number", "offset": 6}, [1, 0]),
        ({"sort": "environment", "step": 2}, [7, 4, 5, 6]),
        ({"text": "straSSE"}, []),
        ({"text": '"STRASSE'.replace("SS", "ß")}, [3]),
        ({"text": "straße"}, [3]),
        ({"text": "über"}, [3]),
        ({"text": "and LEFT"}, [3]),
        ({"text": '"\nand'}, [3]),
        ({"text": "action_ids"}, []),
        ({"text": "<answer>right"}, [0, 1, 2, 4, 5, 6, 7]),
        ({"text": "<answer>right", "step": 2, "sort": "-number"}, [7, 6, 5, 4]),
    ],
)
def test_trajectories_are_filtered_searched_and_sorted(
    listed: Path, query: dict[str, object], numbers: list[int]
) -> None:
    assert [row["number"] for row in ask(listed, "trajectories", run="a", **query)["rows"]] == numbers


def test_trajectories_row_equals_the_index_row(listed: Path) -> None:
    answer = ask(listed, "trajectories", run="a", limit=1, offset=5)
    index = (listed / "a/trajectories/index.jsonl").read_bytes().splitlines()
    assert answer["rows"] == [{"number": 5, **json.loads(index[5])}]
    assert (answer["total"], answer["steps"], answer["broken"]) == (8, [1, 2], 0)
    assert answer["environments"] == ["bandit", "frozen_lake", "sokoban"]
    assert answer["statuses"] == ["failed", "succeeded", "truncated_turns"]


def test_trajectories_of_an_evaluation_are_listed_apart(listed: Path) -> None:
    evaluated = {"evaluation": "before", "turns": [turn(said="evaluated")]}
    add_episode(listed / "a", episode(0, 5, **evaluated))
    add_episode(listed / "a", episode(2, 6, **evaluated | {"evaluation": "validation"}))
    training = ask(listed, "trajectories", run="a")
    assert (training["total"], training["steps"], training["evaluations"]) == (8, [1, 2], ["before", "validation"])
    (row,) = ask(listed, "trajectories", run="a", evaluation="before", text="EVAL")["rows"]
    assert (row["number"], row["evaluation"], row["group"]) == (8, "before", 5)
    assert ask(listed, "trajectories", run="a", evaluation="validation")["steps"] == [2]
    assert ask(listed, "trajectories", run="a", evaluation="after")["total"] == 0
    assert ask(listed, "trajectory", run="a", number=9)["row"]["evaluation"] == "validation"


@pytest.mark.parametrize(
    ("message", "preview"),
    [
        ("<think>hm</think><answer>Up,\n Left</answer>", "Up, Left"),
        ("<answer>one</answer> <answer>two", "two"),
        ("<think>hm</think> 12 </think> 13", "13"),
        ("word " * 50, f"{'word ' * 31}wo..."),
        ("", ""),
        (None, ""),
        ({"content": "", "tool_calls": [{"name": "search", "arguments": '{"q": 1}'}]}, 'search {"q": 1}'),
        ({"content": 7, "tool_calls": 3}, ""),
    ],
)
def test_trajectories_preview_the_last_answer(tmp_path: Path, message: object, preview: str) -> None:
    stored = message if isinstance(message, dict) or message is None else {"role": "assistant", "content": message}
    make_run(tmp_path / "a", [episode(turns=[turn(said="first"), turn() | {"message": stored}])])
    assert ask(tmp_path, "trajectories", run="a", preview=True)["rows"][0]["preview"] == preview
    assert "preview" not in ask(tmp_path, "trajectories", run="a")["rows"][0]


def test_previews_skip_broken_and_long_trajectories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "a", [episode(1), episode(1, 1)])
    add_episode(folder, episode(2), raw=b"not JSON\n")
    rows = ask(tmp_path, "trajectories", run="a", preview=True, text="Right")["rows"]
    assert [row.get("preview") for row in rows] == ["Right", "Right"]
    rows = ask(tmp_path, "trajectories", run="a", preview=True)["rows"]
    assert [row.get("preview") for row in rows] == ["Right", "Right", None]
    monkeypatch.setattr("turnwise.viewer.search.PREVIEW_BYTES", rows[0]["length"])
    rows = ask(tmp_path, "trajectories", run="a", preview=True)["rows"]
    assert [row.get("preview") for row in rows] == ["Right", None, None]


def test_search_continues_from_its_cursor(listed: Path) -> None:
    asked = client(listed)
    first = ask(asked, "trajectories", run="a", text="answer", limit=3)
    assert [row["number"] for row in first["rows"]] == [0, 1, 2]
    assert (first["searched"], first["of"], first["next"]) == (3, 8, 3)
    rest = ask(asked, "trajectories", run="a", text="answer", cursor=first["next"])
    assert [row["number"] for row in rest["rows"]] == [4, 5, 6, 7]
    assert (rest["searched"], rest["next"]) == (8, None)


def test_search_stops_at_the_time_limit_after_one_row(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.viewer.search.TIME_LIMIT_S", 0.0)
    answer = ask(listed, "trajectories", run="a", text="answer", cursor=4)
    assert (answer["searched"], answer["next"], len(answer["rows"])) == (5, 5, 1)


def test_trajectories_include_new_ones(listed: Path) -> None:
    asked = client(listed)
    assert ask(asked, "trajectories", run="a")["total"] == 8
    add_episode(listed / "a", episode(3))
    assert ask(asked, "trajectories", run="a")["rows"][-1]["step"] == 3


def test_nonfinite_rewards_are_shown_as_stored_and_sort_last(tmp_path: Path) -> None:
    rows = [episode(1, 0, 0, reward="NaN"), episode(1, 0, 1, reward="-Infinity"), episode(1, 0, 2, reward=1)]
    make_run(tmp_path / "a", rows)
    for sort, rewards in (("reward", ["-Infinity", 1.0, "NaN"]), ("-reward", [1.0, "-Infinity", "NaN"])):
        assert [row["reward"] for row in ask(tmp_path, "trajectories", run="a", sort=sort)["rows"]] == rewards


def test_trajectory_returns_the_stored_line(tmp_path: Path) -> None:
    shown = episode(2, 1, 1, start=PICTURE, turns=[turn(picture=PICTURE), turn()])
    folder = make_run(tmp_path / "a", [episode(1), shown])
    tokens = [{"id": 453, "text": "<answer>", "special": True}, {"id": 7, "text": "Ri"}, {"id": 9, "text": "no"}]
    (folder / "trajectories/tokens.jsonl").write_bytes(b"".join(map(line, tokens)))
    response = get(tmp_path, "trajectory", run="a", number=1)
    assert line(shown).strip() in response.content
    answer = response.json()
    assert answer["row"] == shown
    assert answer["tokens"] == {"453": {"text": "<answer>", "special": True}, "7": {"text": "Ri", "special": False}}
    assert answer["pictures"] == [draw_picture_svg(PICTURE), draw_picture_svg(PICTURE), None]
    assert (answer["repaired"], answer["pictures_cut"]) == (False, False)


def test_trajectory_of_an_old_run_lacks_tokens_and_pictures(tmp_path: Path) -> None:
    old = episode()
    del old["start"], old["turns"][0]["picture"]
    make_run(tmp_path / "a", [old])
    answer = ask(tmp_path, "trajectory", run="a", number=0)
    assert (answer["row"], answer["tokens"], answer["pictures"]) == (old, {}, [None, None])


def test_evaluation_trajectories_are_indexed_by_line(tmp_path: Path) -> None:
    rows = [episode(0, task) for task in range(3)]
    folder, asked = make_evaluation(tmp_path / "e", {"b": rows[:2], "a": rows}), client(tmp_path)
    answer = ask(asked, "trajectories", run="e", sort="number")
    assert [(row["number"], row["model"], row["group"]) for row in answer["rows"]] == [
        (0, "b", 0),
        (1, "a", 0),
        (2, "b", 1),
        (3, "a", 1),
        (5, "a", 2),
    ]
    assert answer["models"] == ["a", "b"]
    assert answer["rows"][0]["turns"] == 1
    (folder / "models/a.tokens.jsonl").write_bytes(line({"id": 7, "text": "Ri"}))
    (folder / "models/b.tokens.jsonl").write_bytes(line({"id": 7, "text": "other"}))
    shown = ask(asked, "trajectory", run="e", number=5)
    assert (shown["row"], shown["tokens"]) == (rows[2], {"7": {"text": "Ri", "special": False}})
    with (folder / "trajectories/b.jsonl").open("ab") as file:
        file.write(line(rows[2]))
    assert [row["number"] for row in ask(asked, "trajectories", run="e", model="b")["rows"]] == [0, 2, 4]
    assert [row["number"] for row in ask(asked, "trajectories", run="e", text="right", group=2)["rows"]] == [4, 5]


def test_common_matches_environment_and_seed(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [episode(1, 0, 0), episode(1, 0, 1), episode(1, 1, 0)])
    other = episode(0, 0, 1, task={"env": "frozen_lake", "seed": 100, "params": {}})
    strange = episode(0, 1, 1, task={"env": "sokoban", "seed": 101, "params": {}})
    make_evaluation(tmp_path / "e", {"m": [other, strange]})
    answer = ask(tmp_path, "common", one="a", other="e")
    assert answer["total"] == 1
    assert answer["tasks"] == [
        {
            "environment": "frozen_lake",
            "seed": 100,
            "one": [
                {"number": 0, "group": 0, "reward": 0.0, "status": "failed", "step": 1},
                {"number": 1, "group": 0, "reward": 1.0, "status": "succeeded", "step": 1},
            ],
            "other": [{"number": 0, "group": 0, "model": "m", "reward": 1.0, "status": "succeeded", "step": 0}],
        }
    ]


def test_common_compares_evaluations_of_a_run(tmp_path: Path) -> None:
    rows = [episode(step, 0, member, evaluation=name) for name, step, member in (("before", 0, 0), ("after", 3, 1))]
    tasks = [row | {"task": {"env": "frozen_lake", "seed": 7, "params": {}}} for row in (*rows, episode(1))]
    make_run(tmp_path / "a", tasks)
    answer = ask(tmp_path, "common", one="a", other="a", one_evaluation="before", other_evaluation="after")
    assert answer["evaluations"] == {"one": ["after", "before"], "other": ["after", "before"]}
    (task,) = answer["tasks"]
    before = {"number": 0, "group": 0, "evaluation": "before", "reward": 0.0, "status": "failed", "step": 0}
    after = {"number": 1, "group": 0, "evaluation": "after", "reward": 1.0, "status": "succeeded", "step": 3}
    assert (task["one"], task["other"]) == ([before], [after])
    assert ask(tmp_path, "common", one="a", other="a")["tasks"][0]["one"][0]["number"] == 2


def test_single_run_can_be_viewed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", [episode()])
    make_run(tmp_path / "b")
    assert [row["id"] for row in ask(folder, "runs")["runs"]] == ["a"]
    assert ask(folder, "trajectory", run="a", number=0)["row"]["step"] == 1
    assert get(folder, "config", run="b").status_code == 404


def test_long_responses_are_compressed_on_request(tmp_path: Path) -> None:
    make_run(tmp_path / "a", metrics=[{"step": step} for step in range(2000)])
    asked = client(tmp_path)
    with asked.stream("GET", "/api/metrics?run=a", headers={"Accept-Encoding": "gzip"}) as response:
        packed = b"".join(response.iter_raw())
    assert response.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed))["rows"] == 2000
    plain = asked.get("/api/metrics?run=a", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers


@pytest.mark.parametrize(
    ("name", "query", "word"),
    [
        ("metrics", {}, "run"),
        ("metrics", {"run": "a", "after": "-1"}, "after"),
        ("trajectories", {"run": "a", "sort": "colour"}, "colour"),
        ("trajectories", {"run": "a", "reward_min": "nan"}, "reward_min"),
        ("trajectories", {"run": "a", "limit": "1000000"}, "limit"),
        ("trajectories", {"run": "a", "step": "1" * 30}, "step"),
        ("trajectory", {"run": "a", "number": "x"}, "number"),
    ],
)
def test_wrong_query_gets_a_one_line_error(tmp_path: Path, name: str, query: dict[str, str], word: str) -> None:
    make_run(tmp_path / "a")
    response = get(tmp_path, name, **query)
    assert response.status_code == 400
    assert word in response.json()["error"]
    assert "\n" not in response.json()["error"]


def test_run_of_an_older_version_opens(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[1] / "data/older_run", tmp_path / "older_run")
    (row,) = ask(tmp_path, "runs")["runs"]
    assert row["status"] == "finished" and row["step"] == 2 and row["broken"] == 0
    columns = ask(tmp_path, "metrics", run="older_run")["columns"]
    trained = [step for step, value in zip(columns["step"], columns["train/entropy"], strict=True) if value is not None]
    assert trained == [1, 2]
    assert ask(tmp_path, "trajectories", run="older_run", step=2)["total"] == 2
