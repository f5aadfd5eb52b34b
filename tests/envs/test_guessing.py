"""Both question games: rewards, parsing of questions and guesses, the solver, and splits of the words."""

import asyncio
import itertools
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.messages import assistant
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Task
from turnwise.envs.answers import format_answer
from turnwise.envs.guess_city.env import GuessCity
from turnwise.envs.guessing.env import consistent_names, longest_game, next_action, winning_actions
from turnwise.envs.guessing.facts import (
    FILLER_WORDS,
    UNKNOWN,
    FactTable,
    Guess,
    Secret,
    Topic,
    find_phrases,
    split_words,
    strip_lead_words,
)
from turnwise.envs.runner import system_prompt
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.envs.twenty_questions.env import TwentyQuestions
from turnwise.models.loading.tiny import tiny_tokenizer
from work_for_tests import count_lines

GAMES = {"twenty_questions": TwentyQuestions, "guess_city": GuessCity}
both = pytest.mark.parametrize("cls", GAMES.values(), ids=GAMES)


def start(cls, index=0, **params):
    """Return a started runner with its `opening`."""
    kind = EnvSpec(name=cls.__name__, id="", cls=cls)
    runner = kind.make(Task(env=cls.__name__, seed=seed_for("train", index), params=params))
    runner.opening = asyncio.run(runner.start())
    return runner


def make_game(cls, secret, **params):
    """Return a started game with this secret."""
    game = cls(params)
    game.reset(random_stream("test"))
    game.secret = secret
    return game


def wrong_name(game):
    """Return a name that is not the secret."""
    return next(name for name in game.names if name != game.secret)


def guess_text(game, name):
    return Guess(game.table().secrets[name]).text


@both
def test_solver_wins_within_the_limits(cls, steps):
    for index in range(200):
        runner = start(cls, index)
        actions = runner.env.solve()
        assert 1 <= len(actions) <= 20
        results = steps(runner, [format_answer([action]) for action in actions])
        assert [result.reward for result in results] == [-1.0] * (len(actions) - 1) + [0.0]
        assert results[-1].success and results[-1].terminated
        assert not any(result.invalid or result.over for result in results[:-1])


@both
def test_solver_finds_every_word_in_few_turns(cls):
    table = cls.table()
    turns = [len(winning_actions(table, name, frozenset(table.secrets))) for name in table.secrets]
    assert max(turns) == longest_game(table, table.shuffled) <= 20
    mean = sum(turns) / len(turns)
    assert mean < (9.5 if cls is TwentyQuestions else 3.5)


@both
def test_solver_guesses_once_two_words_remain(cls):
    table = cls.table()
    for index in range(20):
        one, two, three = table.shuffled[index : index + 3]
        assert table.parse_guess(next_action(table, frozenset((one, two)))) == min(one, two)
        assert table.parse_guess(next_action(table, frozenset((one, two, three)))) is None


@both
def test_solver_uses_the_answers_alone(cls):
    table = cls.table()
    for secret in table.shuffled[:12]:
        remaining, answered = frozenset(table.secrets), []
        for action in winning_actions(table, secret, remaining):
            assert action == next_action(table, remaining), "each action depends on the answers alone"
            answered.append(table.answer(secret, action))
            remaining = consistent_names(table, table.secrets, answered)
            assert secret in remaining


@both
def test_solver_continues_from_any_state(cls):
    for index in range(30):
        game = start(cls, index).env
        for action in ("what?", *(game.random_action(random_stream("play", index, turn)) for turn in range(5))):
            if game.step(action).over:
                break
        else:
            assert not [action for action in game.solve() if game.step(action).success][1:]
            assert game.answered[-1].answer == "Correct."


@both
def test_questions_and_wrong_guesses_cost_and_right_guess_wins(cls):
    game = make_game(cls, cls.table().shuffled[3])
    for action in (guess_text(game, wrong_name(game)), game.table().questions[0].text, "Is it blurple?"):
        outcome = game.step(action)
        assert (outcome.reward, outcome.over, outcome.success) == (-1.0, False, False)
    outcome = game.step(guess_text(game, game.secret))
    assert (outcome.reward, outcome.over, outcome.success) == (0.0, True, True)
    assert outcome.text.endswith("Correct.")


@both
def test_rewards_are_parameters_and_in_the_prompt(cls):
    game = make_game(cls, cls.table().shuffled[0], turn_reward=-0.25, success_reward=2.0)
    assert game.step("Is it nothing?").reward == -0.25
    assert game.step(guess_text(game, game.secret)).reward == 2.0
    assert "Reward -0.25 a turn, 2 for the right guess." in system_prompt(game)
    assert "Reward -1 a turn, 0 for the right guess." in system_prompt(cls())


@both
def test_guess_accepts_aliases_in_many_forms(cls):
    table = cls.table()
    for secret in table.secrets.values():
        for name in secret.names:
            for form in ("{}", "is it {}", "Is it a {}?", "My guess is: THE {}!", "I think it's {}.", "Guess: {}"):
                assert table.parse_guess(form.format(name)) == secret.name


@both
def test_several_names_in_one_action_are_not_a_guess(cls):
    names = cls.table().shuffled[:5]
    for text in (
        " ".join(names),
        ", ".join(names),
        f"Is it {names[0]} or {names[1]}?",
        f"{names[0]} {names[0]} is it?",
    ):
        assert cls.table().parse_guess(text) is None
        assert cls.table().answer(names[0], text).answer == UNKNOWN


@both
def test_own_questions_are_parsed_as_themselves(cls):
    table = cls.table()
    for question in table.questions:
        assert table.parse(question.text) == question == table.parse(question.text.upper().replace("?", " ?!"))


@both
def test_every_phrase_asks_for_its_topic(cls):
    table = cls.table()
    for topic in {question.topic for question in table.questions}:
        for phrase in topic.phrases:
            assert table.parse(f"Is it something with {phrase}?").topic is topic


@both
def test_negations_and_comparisons_are_not_understood(cls):
    table, phrase = cls.table(), cls.table().questions[0].topic.phrases[0]
    assert table.parse(f"is it {phrase}") is not None
    for strange in (
        "is it not {}",
        "isn't it {}",
        "is it more {} than others",
        "is it never {}",
        "is it {} like {name}",
    ):
        assert table.parse(strange.format(phrase, name=table.shuffled[0])) is None


@both
@given(
    text=st.text()
    | st.lists(st.sampled_from([*sorted(FILLER_WORDS), "alive", "europe", "cat", "paris", "not"])).map(" ".join)
)
def test_any_text_costs_a_turn_unless_it_is_the_right_guess(cls, text):
    game = make_game(cls, "cat" if cls is TwentyQuestions else "Paris")
    outcome = game.step(text)
    right = len(text) <= 200 and strip_lead_words(split_words(text)) == split_words(game.secret)
    assert outcome.success == outcome.over == right
    assert outcome.reward == (0.0 if right else -1.0)
    assert len(outcome.text) < 200


@both
@pytest.mark.parametrize("text", ["is it " * 200_000, "é" * 10**6, "\ufdfa" * 200, "9" * 10**5, "(" * 10**6, "\ud800"])
def test_huge_and_hostile_texts_are_never_echoed(cls, text):
    game = make_game(cls, cls.table().shuffled[0])
    assert count_lines(lambda: game.step(text)) < 500
    game.answered = []
    outcome = game.step(text)
    assert outcome.text == f"? {UNKNOWN}" and not outcome.over


@both
def test_overlong_questions_are_not_parsed(cls):
    question = cls.table().questions[0]
    assert cls.table().parse(question.text.ljust(200)) == question
    assert cls.table().parse(question.text.ljust(201)) is None


@both
def test_observation_has_all_answers_or_the_last(cls):
    secret, asked = cls.table().shuffled[0], [question.text for question in cls.table().questions[:2]]
    lines = [f"{question} {cls.table().answer(secret, question).answer}" for question in asked]
    game = make_game(cls, secret)
    assert game.state_key() == game.opening and game.draw() is None
    assert [game.step(question).text for question in asked] == [lines[0], "\n".join(lines)]
    assert game.state_key() == "\n".join(lines)
    assert [" ".join(row) for row in game.draw().rows] == lines
    game = make_game(cls, secret, observation="last")
    assert [game.step(question).text for question in asked] == lines


@both
def test_prompt_names_no_secret_and_is_the_same_for_all_episodes(cls):
    prompts = {start(cls, index).opening.messages for index in range(20)}
    assert len(prompts) == 1, "rules and opening are all that the model sees"
    said = split_words(" ".join(message.content for message in prompts.pop()))
    names = [split_words(name) for secret in cls.table().secrets.values() for name in secret.names]
    inside = [name for name in names if any(said[at : at + len(name)] == name for at in range(len(said)))]
    assert inside == []


@both
def test_no_answer_names_the_secret(cls):
    table = cls.table()
    for secret in table.secrets.values():
        answers = " ".join(question.answer(secret) for question in table.questions)
        assert not any(re.search(rf"\b{name}\b", answers, re.IGNORECASE) for name in secret.names)


@both
def test_prompt_lists_every_question(cls):
    line = next(line for line in system_prompt(cls()).splitlines() if line.startswith("What you may ask: "))
    listed = []
    for part in re.findall(r"[^?]+\?", line.removeprefix("What you may ask: ")):
        first, *others = part.strip().removesuffix("?").split(", ")
        begin = " ".join(first.split()[:2])
        listed += [f"{first}?", *(f"{begin} {other}?" for other in others)]
    assert sorted(listed) == sorted(question.text for question in cls.table().questions)


@both
def test_prompt_states_limits_and_valid_examples(cls):
    assert "1 action a turn; at most 20 turns in all." in system_prompt(cls())
    assert "At most 2 actions a turn; at most 15 turns and 25 actions in all." in system_prompt(
        cls({"max_turns": 15, "max_actions_per_turn": 2, "max_actions": 25})
    )
    question, name = re.fullmatch(r"A question: (.+\?) A guess: Is it (.+)\?", cls.examples).groups()
    assert cls.table().parse(question) is not None
    assert cls.table().parse_guess(name) is None, "the example reveals no secret"


@both
def test_rules_and_answers_are_whole_tokens_of_tiny(cls):
    tokenizer = tiny_tokenizer()
    lines = [line for line in cls().rules().splitlines() if not line.startswith("What you may ask")]
    for text in (*lines, cls.opening, "What you may ask:", "Is it a cat? Yes.", "No.", "Correct.", f"? {UNKNOWN}"):
        pieces = [tokenizer.decode([token]) for token in tokenizer.encode(text.replace("Atlantis", "Asia"))]
        assert not [a + b for a, b in itertools.pairwise(pieces) if re.fullmatch(r"\w\w", a[-1] + b[0])]


@both
def test_secrets_are_drawn_uniformly(cls):
    game, names = cls(), len(cls.table().secrets)
    seen = Counter()
    for seed in range(20 * names):
        game.reset(random_stream("draw", seed))
        seen[game.secret] += 1
    assert set(seen) == set(cls.table().secrets) and max(seen.values()) < 50


@both
def test_words_split_makes_splits_disjoint(cls):
    def candidates(split, **params):
        game = cls(params)
        game.split = split
        game.reset(random_stream(split))
        assert game.secret in game.candidate_words()
        return set(game.candidate_words())

    splits = ("train", "validation", "test")
    train, validation, test = (candidates(split, words="split") for split in splits)
    assert not train & validation and not train & test and not validation & test
    assert train | validation | test == set(cls.table().secrets)
    assert len(train) == 3 * len(validation) == 3 * len(test)
    assert all(candidates(split, words="split", num_words=5) for split in splits)
    assert candidates("train") == candidates("test") == set(cls.table().secrets)
    with pytest.raises(UserError, match='words = "split"'):
        cls({"words": "split"}).reset(random_stream(0))


@both
def test_fewer_words_make_a_shorter_game(cls):
    longest = [longest_game(cls.table(), cls.table().shuffled[:number]) for number in (5, 20, 60, 150)]
    assert longest == sorted(longest) and longest[0] <= 5
    for index in range(20):
        game = start(cls, index, num_words=8).env
        assert game.secret in game.names == cls.table().shuffled[:8]
        assert len(game.solve()) <= longest_game(cls.table(), game.names)


@both
def test_limits_below_the_longest_game_are_rejected(cls):
    needed = longest_game(cls.table(), cls.table().shuffled[:40])
    for limits in ({"max_turns": needed}, {"max_turns": needed // 2 + 1, "max_actions_per_turn": 2}):
        cls({"num_words": 40, **limits}).reset(random_stream(0))
    for limits in ({"max_turns": needed - 1}, {"max_actions": needed - 1}):
        with pytest.raises(UserError, match=f"up to {needed} .* allow {needed - 1}: raise env.params.max_turns"):
            cls({"num_words": 40, **limits}).reset(random_stream(0))


@both
def test_parameters_out_of_range_are_rejected(cls):
    kind = EnvSpec(name="game", id="", cls=cls)
    assert kind.check_params({})["num_words"] == len(cls.table().secrets)
    for wrong in ({"num_words": 4}, {"num_words": len(cls.table().secrets) + 1}, {"words": "none"}, {"secret": "cat"}):
        with pytest.raises(UserError, match=r"env\.params"):
            kind.check_params(wrong)


@both
def test_random_actions_are_valid_questions_and_guesses(cls):
    game = start(cls).env
    actions = [game.random_action(random_stream(seed)) for seed in range(400)]
    assert all(game.table().parse(action) for action in actions)
    guesses = sum(game.table().parse_guess(action) is not None for action in actions)
    assert 50 < guesses < 120
    assert len(set(actions)) > len(game.table().questions)


@both
def test_late_turns_are_as_cheap_as_early_ones(cls):
    """benchmarks/environments.py measures the time."""
    game = start(cls).env
    actions = [game.random_action(random_stream(seed)) for seed in range(20)]
    costs = [count_lines(lambda action=action: game.step(action)) for action in actions * 2]
    assert max(costs) < 200 and len(game.answered) == 40


def test_invalid_answer_costs_a_turn_and_changes_nothing(steps):
    runner = start(TwentyQuestions, turn_reward=-2.0)
    (result,) = steps(runner, ["Is it alive?"])
    assert result.invalid and result.reward == -2.0 and runner.env.answered == []
    assert asyncio.run(runner.step(assistant("<answer>Is it alive?</answer>"))).info["state"] == "What is it?"


@both
def test_task_split_selects_the_words(cls):
    kind = EnvSpec(name="game", id="", cls=cls)
    secrets = {split: set() for split in ("train", "validation", "test")}
    for split, seen in secrets.items():
        for index in range(60):
            runner = kind.make(Task(env="game", seed=seed_for(split, index), split=split, params={"words": "split"}))
            asyncio.run(runner.start())
            seen.add(runner.env.secret)
    assert sum(map(len, secrets.values())) == len(set().union(*secrets.values()))


COLOUR = Topic(key="colour", question="Which colour is it?", answer="It is {}.", phrases=("colour",))
ROUND = Topic(key="round", question="Is it round?", phrases=("round",))


def test_ambiguous_tables_are_rejected():
    ball = Secret(name="ball", facts={"colour": "red", "round": "Yes"})
    with pytest.raises(ValueError, match="same answers"):
        FactTable([ball, Secret(name="plum", facts=ball.facts)], [COLOUR, ROUND])
    with pytest.raises(ValueError, match="'Is it round\\?' is not parsed"):
        FactTable([Secret(name="round", facts=ball.facts), ball], [COLOUR, ROUND])
    assert FactTable([ball], [COLOUR, ROUND]).answer("ball", "What colour has it?").answer == "It is red."


def test_split_words_lowercases_and_strips_accents():
    assert split_words("  Is it SÃO Paulo -- or Málaga’s 2nd?") == ("is", "it", "sao", "paulo", "or", "malagas", "2nd")
    assert strip_lead_words(("is", "it", "a", "cat", "a")) == ("cat", "a") and strip_lead_words(("it",)) == ()


def test_find_phrases_prefers_the_longest_match():
    phrases = {("a",): 1, ("a", "b"): 2, ("b", "c"): 3}
    assert find_phrases(tuple("abcaxbc"), phrases, longest=2) == ([2, 1, 3], ["c", "x"])
