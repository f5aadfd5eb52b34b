# ruff: noqa: E701, E702 (GuessNumber stands here as the documentation shows it)
import asyncio
import random

import numpy as np
import pytest
from pydantic import BaseModel

from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import Picture, assistant
from turnwise.core.task import Task
from turnwise.core.trajectory import Status
from turnwise.envs.answers import invalid_action_line
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.runner import MAX_HTML
from turnwise.envs.text_env import Outcome, TextEnv, goes_on, lost, params_model, won


# fmt: off
class GuessNumber(TextEnv):                     # a whole environment
    """I think of a number between 1 and 100."""
    max_turns = 7
    def reset(self, rng): self.secret = rng.randint(1, 100); return "Guess my number (1-100)."
    def step(self, action):
        guess = int(action)                     # ValueError -> invalid action; the episode goes on
        if guess == self.secret: return won("Correct!")
        return goes_on("higher" if guess < self.secret else "lower")
# fmt: on


class Counter(TextEnv):
    """Count up."""

    max_turns = 4
    max_actions_per_turn = 3
    max_actions = 5

    class Params(BaseModel):
        goal: int = 99
        trap: int = 50

    def reset(self, rng):
        self.count = 0
        return "0"

    def step(self, action):
        if action == "break":
            raise KeyError("broken")
        self.count += int(action)
        if self.count == self.params.goal:
            return won(str(self.count), reward=2.0)
        if self.count == self.params.trap:
            return lost(str(self.count), reward=-1.0)
        return goes_on(str(self.count), reward=0.5)


def make(cls, **params):
    return spec_of(cls).make(Task(env=cls.__name__, seed=0, params=params))


def say(result):
    (message,) = result.messages
    assert message.role == "user"
    return message.content


def secret_of(episode):
    runner = make(GuessNumber)
    opening, _ = episode(runner, [])
    assert opening.messages[1].content == "Guess my number (1-100)."
    return runner.env.secret


def test_text_env_example_is_won_by_bisection(episode):
    secret = secret_of(episode)
    low, high, guesses = 1, 100, []
    while secret not in guesses:
        middle = (low + high) // 2
        guesses.append(middle)
        low, high = (middle + 1, high) if middle < secret else (low, middle - 1)
    _, results = episode(make(GuessNumber), [f"<answer>{guess}</answer>" for guess in guesses])
    assert [result.reward for result in results] == [0.0] * (len(guesses) - 1) + [1.0]
    assert results[-1].success and results[-1].terminated and not results[-1].truncated
    assert results[-1].status is Status.SUCCEEDED
    assert say(results[-1]) == "Correct!"


def test_text_env_example_gives_hints_and_ends_after_seven_turns(episode):
    secret = secret_of(episode)
    below, above = f"<answer>{secret - 1}</answer>", f"<answer>{secret + 1}</answer>"
    _, results = episode(make(GuessNumber), [below, above] * 4)
    assert [say(result) for result in results[:2]] == ["higher", "lower"]
    assert len(results) == 7
    assert results[-1].truncated and not results[-1].terminated and not results[-1].success
    assert results[-1].status is Status.TRUNCATED_TURNS
    assert say(results[-1]) == "higher\nNo turns left."


def test_runner_treats_value_errors_as_invalid_actions(episode):
    _, (bad, good) = episode(make(GuessNumber), ["<answer>ten</answer>", "<answer>0</answer>"])
    assert bad.invalid and not bad.over and bad.reward == 0.0
    assert say(bad) == ("Invalid action: invalid literal for int() with base 10: 'ten'\nGuess my number (1-100)."), (
        "the agent reads what was wrong"
    )
    assert not good.invalid and say(good) == "higher"


class Parser(TextEnv):
    """Give a number."""

    def reset(self, rng):
        return "?"

    def step(self, action):
        if action == "no":
            raise ValueError("not this one")
        return goes_on(str(int(action)))


def test_runner_logs_the_first_value_error_without_a_raise_statement(episode, caplog):
    _, (raised,) = episode(make(Parser), ["<answer>no</answer>"])
    assert "Invalid action: not this one" in say(raised) and not caplog.text
    _, results = episode(make(Parser), ["<answer>x</answer>", "<answer>x</answer>"])
    assert all("Invalid action: invalid literal" in say(result) for result in results)
    assert (
        caplog.text.count("Parser.step: ValueError: invalid literal for int() with base 10: 'x' at test_text_env") == 1
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "Invalid action."),
        (" \n\t", "Invalid action."),
        ("cell 9 is\n  outside\x1b[2J\ud800 of\x00 it", "Invalid action: cell 9 is outside [2J of it"),
        ("x" * 201, f"Invalid action: {'x' * 200}..."),
        ("y" * 10**6, f"Invalid action: {'y' * 200}..."),
    ],
)
def test_invalid_action_line_is_short_and_printable(text: str, line: str) -> None:
    assert invalid_action_line(ValueError(text)) == line


class AsyncCounter(TextEnv):
    """Count to two."""

    async def reset(self, rng):
        await asyncio.sleep(0)
        self.count = 0
        return "0"

    async def step(self, action):
        await asyncio.sleep(0)
        if action == "break":
            raise KeyError("broken")
        self.count += int(action)
        return won() if self.count == 2 else goes_on(str(self.count))


def test_reset_and_step_may_be_async(episode):
    answers = [f"<answer>{action}</answer>" for action in ("1", "one", "1")]
    opening, (first, bad, last) = episode(make(AsyncCounter), answers)
    assert opening.messages[-1].content == "0" and say(first) == "1"
    assert bad.invalid and say(bad) == "Invalid action: invalid literal for int() with base 10: 'one'\n1"
    assert last.success and last.reward == 1.0
    with pytest.raises(EnvironmentFailure, match="KeyError: 'broken'"):
        episode(make(AsyncCounter), ["<answer>break</answer>"])


def test_runner_reports_unreadable_answers_and_counts_the_turn(episode):
    _, results = episode(make(GuessNumber), ["50", "<answer></answer>"] * 4)
    assert len(results) == 7 and all(result.invalid for result in results)
    assert say(results[0]) == "No answer found.\nGuess my number (1-100)."
    assert say(results[1]) == "Empty answer.\nGuess my number (1-100)."
    assert results[-1].truncated and results[0].info["problem"] == "No answer found."


def test_prompt_contains_rules_limits_and_format(episode):
    opening, _ = episode(make(GuessNumber), [])
    system, user = opening.messages
    assert (system.role, user.role) == ("system", "user")
    assert system.content == (
        "I think of a number between 1 and 100.\n"
        "1 action a turn; at most 7 turns in all.\n"
        "Answer: <answer>action</answer>. You may think first: <think>thoughts</think>."
    )


def test_prompt_states_turn_and_episode_limits_separately(episode):
    opening, _ = episode(make(Counter), [])
    assert "At most 3 actions a turn; at most 4 turns and 5 actions in all." in opening.messages[0].content
    assert "<answer>action || action</answer>" in opening.messages[0].content


def test_runner_enforces_limits_from_parameters(episode):
    answers = ["<answer>1 || 1</answer>"] * 9
    opening, results = episode(make(Counter, max_turns=2, max_actions_per_turn=2, max_actions=None), answers)
    assert "At most 2 actions a turn; at most 2 turns in all." in opening.messages[0].content
    assert len(results) == 2 and results[-1].truncated


def test_runner_sums_rewards_and_shows_the_last_observation(episode):
    _, (result,) = episode(make(Counter), ["<answer>1 || 2||3</answer>"])
    assert result.reward == 1.5 and say(result) == "6"
    assert result.info["actions"] == ["1", "2", "3"]


def test_runner_skips_actions_after_the_end(episode):
    runner = make(Counter, goal=2)
    _, (result,) = episode(runner, ["<answer>1 || 1 || 1</answer>"])
    assert result.success and result.reward == 2.5 and runner.env.count == 2
    assert result.info["actions"] == ["1", "1"] and result.info["success"] is True


def test_lost_episode_terminates_without_success(episode):
    _, (result,) = episode(make(Counter, trap=1), ["<answer>1</answer>"])
    assert result.terminated and not result.success and result.reward == -1.0
    assert result.status is Status.FAILED


def test_runner_ignores_and_reports_excess_actions(episode):
    runner = make(Counter)
    _, (result,) = episode(runner, ["<answer>1 || 1 || 1 || 1 || 1</answer>"])
    assert runner.env.count == 3 and not result.invalid and result.info["ignored"] == 2
    assert say(result) == "Too many actions: 3 ran.\n3"


def test_runner_truncates_at_the_action_limit(episode):
    runner = make(Counter)
    _, results = episode(runner, ["<answer>1 || 1 || 1</answer>"] * 4)
    assert len(results) == 2 and runner.env.count == 5
    assert results[-1].truncated and not results[0].over
    assert say(results[-1]) == "5\nNo actions left."


def test_runner_keeps_actions_before_an_invalid_one(episode):
    runner = make(Counter)
    _, (result,) = episode(runner, ["<answer>1 || x || 1</answer>"])
    assert result.invalid and result.reward == 0.5 and runner.env.count == 1
    assert say(result).startswith("Invalid action: ") and say(result).endswith("\n1")
    assert result.info["actions"] == ["1"]


def test_runner_reports_exceptions_as_environment_failures(episode):
    with pytest.raises(EnvironmentFailure, match=r"Counter\.step raised KeyError: 'broken' at test_text_env\.py:\d+$"):
        episode(make(Counter), ["<answer>break</answer>"])


def test_runner_reports_value_errors_in_reset_as_failures(episode):
    class Broken(GuessNumber):
        def reset(self, rng):
            raise ValueError("no numbers left")

    with pytest.raises(EnvironmentFailure, match="no numbers left"):
        episode(make(Broken), [])


@pytest.mark.parametrize("value", [None, "text", won(3), goes_on("", float("nan"))])
def test_runner_rejects_invalid_step_results(episode, value):
    class Broken(GuessNumber):
        def step(self, action):
            return value

    with pytest.raises(EnvironmentFailure):
        episode(make(Broken), ["<answer>1</answer>"])


@pytest.mark.parametrize(
    ("reward", "shown"),
    [
        *(("1", "the text '1'"), (1j, "1j"), (None, "None"), ([1], r"\[1\]"), (1e308, r"1e\+308"), (-2e9, "-20000")),
        *((float("nan"), "nan"), (float("inf"), "inf"), (10**400, "1000"), ([10**5000], "a value of type list")),
    ],
    ids=lambda given: type(given).__name__,
)
def test_runner_rejects_rewards_out_of_range(episode, reward, shown):
    class Broken(GuessNumber):
        def step(self, action):
            return won(reward=reward)

    with pytest.raises(
        EnvironmentFailure, match=rf"^Broken.step returned {shown}.* as the reward.*between -1e\+09 and 1e\+09$"
    ):
        episode(make(Broken), ["<answer>1</answer>"])


@pytest.mark.parametrize("reward", [True, 1, np.float32(1), np.array(1), 10**9])
def test_runner_accepts_any_real_number_as_reward(episode, reward):
    class Odd(GuessNumber):
        def step(self, action):
            return won(reward=reward)

    _, (result,) = episode(make(Odd), ["<answer>1</answer>"])
    assert type(result.reward) is float and result.reward == float(reward)


@pytest.mark.parametrize("drawn", [None, Picture(rows=(("player",),), caption="a map")])
def test_html_of_a_state_is_recorded_with_its_picture(episode, drawn):
    class Page(GuessNumber):
        def draw(self):
            return drawn

        def render_html(self):
            return "<p>state</p>"

    opening, (result,) = episode(make(Page), ["<answer>1</answer>"])
    for picture in (opening.picture, result.picture):
        assert picture.html == "<p>state</p>"
        assert picture.rows == (() if drawn is None else drawn.rows)


def test_html_that_is_too_large_is_left_out_with_one_note(episode, caplog):
    class Large(GuessNumber):
        def render_html(self):
            return "x" * (MAX_HTML + 1)

    opening, (result,) = episode(make(Large), ["<answer>1</answer>"])
    assert opening.picture is result.picture is None
    assert [record.message for record in caplog.records] == [
        f"note: Large.render_html returned {MAX_HTML + 1} characters, and at most {MAX_HTML} are recorded: return less"
    ]


def test_html_that_is_not_text_is_a_failure_of_the_environment(episode):
    class Broken(GuessNumber):
        def render_html(self):
            return b"<p>"

    with pytest.raises(EnvironmentFailure, match=r"^Broken.render_html returned .*"):
        episode(make(Broken), ["<answer>1</answer>"])


@pytest.mark.parametrize("picture", ["P _ G", [["P"]], {"rows": []}, 0])
@pytest.mark.parametrize("turn", [0, 1])
def test_runner_rejects_drawings_that_are_not_pictures(episode, picture, turn):
    class Broken(GuessNumber):
        drawn = -1

        def draw(self):
            self.drawn += 1
            return picture if self.drawn == turn else None

    with pytest.raises(EnvironmentFailure, match=r"^Broken.draw returned .*: return a turnwise Picture, or None$"):
        episode(make(Broken), ["<answer>1</answer>"])


@pytest.mark.parametrize("part", ["draw", "state_key", "rules"])
def test_runner_reports_failures_of_hooks(episode, part):
    def fails(self):
        raise ValueError("oh")

    cls = type("Broken", (GuessNumber,), {part: fails})
    with pytest.raises(EnvironmentFailure, match="oh"):
        episode(make(cls), ["<answer>1</answer>"])


def test_runner_passes_user_errors(episode):
    class Unmendable(GuessNumber):
        def reset(self, rng):
            raise UserError("no word list: write one")

    with pytest.raises(UserError, match="word list"):
        episode(make(Unmendable), [])


def test_runner_rejects_a_second_start(episode, steps):
    runner = make(Counter, goal=1)
    with pytest.raises(RuntimeError, match="before start"):
        steps(runner, ["<answer>1</answer>"])
    episode(runner, ["<answer>1</answer>"])
    with pytest.raises(RuntimeError, match="after the end"):
        steps(runner, ["<answer>1</answer>"])
    with pytest.raises(RuntimeError, match="single use"):
        episode(runner, [])


def test_params_are_strict_and_frozen():
    with pytest.raises(UserError, match='did you mean "goal"'):
        make(Counter, goals=3)
    with pytest.raises(ValueError):
        make(Counter).env.params.goal = 3


def test_random_answer_is_legal_and_varies_in_length(episode):
    class Picker(Counter):
        action_names = ("1", "2")
        max_actions_per_turn = 3

    runner, rng = make(Picker), random.Random(0)
    answers = {runner.env.random_answer(rng) for _ in range(200)}
    assert len(answers) == 2 + 4 + 8
    for answer in answers:
        assert not episode(make(Picker), [answer])[1][0].invalid


def test_random_answer_needs_random_actions():
    assert make(GuessNumber).env.random_answer(random.Random(0)) is None


def test_action_names_are_checked_and_in_the_prompt(episode):
    class Picker(Counter):
        action_names = ("1", "2")

    opening, (result,) = episode(make(Picker), ["<answer>1 || 3</answer>"])
    assert "Actions: 1, 2." in opening.messages[0].content
    assert result.invalid and result.info["actions"] == ["1"]


def test_subclass_without_docstring_inherits_the_rules(episode):
    class Quiet(GuessNumber):
        max_turns = 1

    class Silent(TextEnv):
        reset = GuessNumber.reset
        step = GuessNumber.step

    assert "between 1 and 100" in episode(make(Quiet), [])[0].messages[0].content
    assert episode(make(Silent), [])[0].messages[0].content.startswith("1 action a turn")


@pytest.mark.parametrize(("a_turn", "last"), [(1, "<answer>Up</answer>."), (2, "<answer>Left || Down</answer>.")])
def test_prompt_can_show_each_action_as_an_answer(a_turn: int, last: str) -> None:
    kind = load_spec("frozen_lake")
    task = Task(env="frozen_lake", params={"examples": True, "max_actions_per_turn": a_turn}, seed=1)
    said = asyncio.run(kind.make(task, member=0).start()).messages[0].content
    for name in ("Left", "Down", "Right"):
        assert f"<answer>{name}</answer>" in said
    assert said.endswith(last)
    assert "Actions:" not in said
    plain = Task(env="frozen_lake", params={"max_actions_per_turn": a_turn}, seed=1)
    boards = [asyncio.run(kind.make(each, member=0).start()).messages[-1].content for each in (task, plain)]
    assert boards[0] == boards[1], "the same world, in other words"


def test_example_answers_need_named_actions() -> None:
    assert "examples" in params_model(load_spec("sokoban").cls).model_fields
    assert "examples" not in params_model(load_spec("countdown").cls).model_fields


class Parted(Counter):
    def step(self, action):
        return Outcome(text="", reward=1.0, over=False, success=False, parts={"number": float(action)})


def test_reward_parts_of_all_actions_are_recorded() -> None:
    """Also of actions that do not end the episode, and of those before an invalid one."""
    env = make(Parted)
    asyncio.run(env.start())
    for answer, expected in (("1 || 2", {"number": 3.0}), ("4 || five", {"number": 4.0})):
        result = asyncio.run(env.step(assistant(f"<answer>{answer}</answer>")))
        assert result.info["rewards"] == expected
