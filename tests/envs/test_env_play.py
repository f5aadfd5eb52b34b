import signal

import pytest

from openenv_for_tests import observation, scripted_server
from pages_for_tests import ROOT
from turnwise.core.errors import UserError
from turnwise.core.task import Task
from turnwise.envs.play import play
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.text_env import TextEnv, goes_on, won


def played(lines, name="frozen_lake", seed=2, **params):
    """Plays these lines; returns whether it was won, and all that was written."""
    kind, written, left = load_spec(name), [], iter(lines)

    def read_line():
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    won = play(kind, Task(env=name, seed=seed, params=params), read_line, written.append)
    return won, "\n".join(written)


def solution(name, seed):
    won, text = played(["hint"], name=name, seed=seed)
    assert not won
    return text.split("hint: ")[1].split()[0]


def test_play_hints_lead_to_success():
    kind, written, state = load_spec("sokoban"), [], {"ask": True}

    def read_line():
        state["ask"] = not state["ask"]
        return written[-1].removeprefix("hint: ") if state["ask"] else "hint"

    assert play(kind, Task(env="sokoban", seed=1), read_line, written.append)
    assert written[-1].startswith("Won. Total reward 10.")


def test_play_shows_the_observation_of_the_model():
    _, text = played(["q"])
    assert "Walk over the ice" in text and "P" in text.split("</think>.")[1] and "You quit." in text


def test_play_saves_images_and_previews_them_in_a_terminal(monkeypatch, tmp_path):
    pytest.importorskip("PIL")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kind, written = load_spec("frozen_lake"), []
    lines = iter(["Up", "q"])
    task = Task(env="frozen_lake", seed=2, params={"observation": "image", "cell_pixels": 8})
    play(kind, task, lambda: next(lines), written.append, preview_columns=16)
    files = sorted(tmp_path.glob("turnwise-play-*/*.png"))
    assert [file.name for file in files] == ["1.png", "2.png"]
    shown = [text for text in written if "[image: " in text]
    assert str(files[0]) in shown[0] and str(files[1]) in shown[1]
    assert len(shown[0].split("\n")) == 9 and shown[0].count("\N{UPPER HALF BLOCK}") == 16 * 8
    assert "\x1b" not in played(["q"], observation="image")[1]


def test_play_shows_images_without_empty_lines_around_them(monkeypatch, tmp_path):
    pytest.importorskip("PIL")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, text = played(["jump", "q"], observation="both")
    (file,) = tmp_path.glob("turnwise-play-*/2.png")
    assert f"Invalid action.\n[image: {file}]\nO _ _ _\n" in text


def test_play_accepts_actions_and_whole_answers():
    _, text = played(["Up || Up", "", "<think>hm</think><answer>Up</answer>", "jump", "q"], seed=0)
    assert "turn 1 of 5: reward 0\n" in text and "turn 2 of 5: reward 0\n" in text
    assert "Invalid action." in text and "turn 3 of 5: reward 0, invalid" in text


def test_play_counts_the_turns_of_all_roles():
    """Without `env.params.role` one agent plays all of them, each with its own limit of turns."""
    spec, written = load_spec(f"{ROOT / 'examples' / 'telephone' / 'telephone.py'}:Telephone"), []
    play(spec, Task(env=spec.name, seed=0), iter(["a", "b", "c"]).__next__, written.append)
    turns = [text.partition(":")[0] for text in written if text.startswith("turn ")]
    assert turns == ["turn 1 of 3", "turn 2 of 3", "turn 3 of 3"]


def test_play_reports_truncation():
    won, text = played(["jump"] * 9)
    assert not won and text.endswith("Out of turns or actions. Total reward 0.")


def test_play_ends_with_its_input():
    assert played([]) == (False, played(["q"])[1])


@pytest.mark.parametrize("word", ["quit", "exit", " q "])
def test_play_quits_at_a_quit_word(word):
    assert played([word, "Up"]) == (False, played(["q"])[1])


class Doors(TextEnv):
    """Find the door."""

    action_names = ("Exit", "Q")

    def reset(self, rng):
        return "Two doors."

    def step(self, action):
        return won("Out.") if action == "Exit" else goes_on("Locked.")


def test_play_takes_an_action_of_the_environment_before_quitting():
    spec, written, lines = spec_of(Doors), [], iter(["q", "exit"])
    assert play(spec, Task(env=spec.name, seed=0), lambda: next(lines), written.append)
    assert "Type an action, hint, or quit." in written and "You quit." not in written


@pytest.mark.parametrize("before", [[], ["```python"]])
def test_play_is_interrupted_at_once_while_it_reads(before, monkeypatch):
    lines, read, closed = iter(before), [], []

    async def close(runner):
        closed.append(runner)

    monkeypatch.setattr(TextEnvRunner, "close", close)

    def read_line():
        if (line := next(lines, None)) is not None:
            return line
        signal.raise_signal(signal.SIGINT)
        read.append("on")
        return "q"

    with pytest.raises(KeyboardInterrupt):
        play(load_spec("frozen_lake"), Task(env="frozen_lake", seed=2), read_line, [].append)
    assert not read and len(closed) == 1


def test_play_reports_a_lost_episode():
    low = {"Dragon": "Turtle", "Trader": "Teacher", "Pirate": "Farmer", "Explorer": "Baker"}
    high = solution("bandit", 0)
    won, text = played([low[high]], name="bandit", seed=0)
    assert not won and text.endswith("Lost. Total reward 0.1.")


def test_play_reads_fenced_blocks_as_one_answer():
    _, hints = played(["hint"], name="math_code", level=1)
    block = hints.split("hint: ")[1].split("\nYou quit.")[0].splitlines()
    assert block[0] == "```python" and block[-1] == "```"
    _, text = played(block, name="math_code", level=1)
    assert "turn 1 of 6: reward 0\n" in text and "invalid" not in text


def test_play_reads_an_answer_of_several_lines():
    """Countdown reads an action across lines; in a second episode the input ends within the answer."""
    lines = ["<think>hm</think><answer>1 +", "1", "+ 1</answer>", "q"]
    _, text = played(lines, name="countdown")
    assert "Several lines: from <answer> to </answer>." in text and "turn 1 of" in text and "turn 2 of" not in text
    assert "No answer found" not in text
    assert played(lines[:1], name="countdown")[1].endswith("You quit.")
    assert "Several lines" not in played(["q"])[1]


def test_play_lists_the_tools():
    _, text = played(["q"], name="search_qa")
    assert '"name": "search"' in text and "A call: <tool_call>" in text


def test_play_reports_failures_in_one_line(tmp_path):
    (tmp_path / "own.py").write_text(
        'def broken(x: str) -> str:\n    """Breaks."""\n    raise RuntimeError("gone")\n\n\n'
        "def score(answer, row):\n    return 1\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"question": "?", "split": "train"}\n')
    own = {"tasks": str(tmp_path / "rows.jsonl"), "style": "answer"}
    own |= {"tools": [f"{tmp_path}/own.py:broken"], "reward": f"{tmp_path}/own.py:score"}
    with pytest.raises(UserError, match=r"the tool broken: own\.py:3: RuntimeError: gone, 3 times"):
        played(["<call>broken x</call>"], name="tools", seed=0, **own)


@pytest.mark.parametrize("style", ["hermes", "llama", "mistral", "answer"])
def test_play_hints_work_in_every_call_style(style):
    lines, written = iter(["hint", None, "hint", None]), []

    def read_line():
        return next(lines) or written[-1].removeprefix("hint: ")

    task = Task(env="lookup", seed=2, params={"style": style})
    assert play(load_spec("lookup"), task, read_line, written.append)
    assert written[-1] == "Won. Total reward 1." and not any("valid JSON" in line for line in written)


@pytest.mark.parametrize(
    ("actions", "typed", "sent"), [(["Up"], "Up", "<answer>Up</answer>"), (None, "Hello", "Hello")]
)
def test_play_sends_an_answer_only_where_answers_are_offered(actions, typed, sent):
    said = []

    def chat(server, socket, message):
        if message["type"] == "step":
            said.append(message["data"]["message"])
        return observation(messages=[{"role": "user", "content": "Hi"}], actions=actions, done=bool(said))

    with scripted_server(chat) as server:
        task = Task(env="openenv", seed=0, params={"server": server.url})
        play(load_spec("openenv"), task, lambda: typed, lambda line: None)
    assert said == [sent]
