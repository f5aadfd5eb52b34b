import re

import pytest

from turnwise.envs.guessing.facts import UNKNOWN
from turnwise.envs.twenty_questions.env import TwentyQuestions, load_things, parse_things

ATTRIBUTES = [topic.key for topic in load_things().topics]
YES = {
    "cat": [
        "Is it alive?",
        "is it a mammal",
        "Does it live in a house?",
        "Is it a living thing?",
        "Does it have 4 legs?",
    ],
    "bus": ["Is it bigger than a car?", "Is it large?", "Does it have wheels?", "Is it usually made of metal?"],
    "apple": ["Can you eat it?", "Is it edible?", "Would you find it in the kitchen?", "Is it red?", "Is it a fruit?"],
    "piano": ["Can you make music with it?", "Is it a musical instrument?", "Is it made out of wood?", "Is it wooden?"],
    "knife": ["Is it a tool?", "Is it sharp?", "Is it dangerous?", "Does it fit in your hand?", "Is it small?"],
    "penguin": ["Is it a bird?", "Can it be found in the cold?", "Is it an animal?", "Does it have feathers?"],
    "milk": ["Can people drink it?", "Is it something you drink?", "Is it white?", "Is it found on a farm?"],
    "sofa": ["Can you sit on it?", "Is it a piece of furniture?", "Is it made of fabric?", "Does it have four legs?"],
}
NO = {
    "cat": ["Can you eat it?", "Is it electric?", "Does it fly?", "Is it a vehicle?"],
    "bus": ["Is it alive?", "Is it small?", "Does it fly?"],
    "apple": ["Is it an animal?", "Is it made of glass?", "Can you wear it?", "Is it a plant?"],
    "penguin": ["Does it fly?", "Is it a mammal?", "Does it have four legs?"],
    "lion": ["Is it a bird?", "Is it found on a farm?"],
}


@pytest.mark.parametrize(("answers", "said"), [(YES, "Yes."), (NO, "No.")], ids=["yes", "no"])
def test_questions_are_answered_from_the_attributes(answers, said):
    for secret, questions in answers.items():
        assert [load_things().answer(secret, question).answer for question in questions] == [said] * len(questions)


@pytest.mark.parametrize(
    "question",
    [
        "Is it bigger than a house?",
        "Is it not alive?",
        "Is it alive and red?",
        "Is it made of wood or metal?",
        "Is it used to cut wood?",
        "Is it like a dog?",
        "Is it a unicorn?",
        "Does it have legs?",
        "What is it?",
        "cat cat",
        "Tell me the word.",
        "???",
    ],
)
def test_unknown_questions_are_answered_as_unknown(question):
    assert load_things().answer("cat", question).answer == UNKNOWN


def test_things_are_numerous_and_distinct():
    rows = [tuple(secret.facts.values()) for secret in load_things().secrets.values()]
    assert len(set(rows)) == len(rows) and 150 <= len(rows) <= 300
    assert 25 <= len(ATTRIBUTES) <= 40
    for key in ATTRIBUTES:
        assert 5 <= sum(secret.facts[key] == "Yes" for secret in load_things().secrets.values()) <= len(rows) - 5


def test_attributes_do_not_contradict_each_other():
    implied = {
        "mammal": "animal",
        "bird": "animal",
        "animal": "alive",
        "plant": "alive",
        "fruit": "food",
        "meat": "animal",
    }
    for secret in load_things().secrets.values():
        true = {key for key, fact in secret.facts.items() if fact == "Yes"}
        assert all(implied[key] in true for key in true & implied.keys()), secret.name
        for apart in (
            {"animal", "plant"},
            {"mammal", "bird"},
            {"hand", "big"},
            {"vehicle", "building"},
            {"alive", "electric"},
        ):
            assert not apart <= true, secret.name


def test_all_answers_are_yes_or_no():
    table = load_things()
    answers = {question.answer(secret) for question in table.questions for secret in table.secrets.values()}
    assert answers == {"Yes.", "No."}


def test_parse_things_follows_the_documented_format():
    text = "# head\n[alive animal]\na cat: meat\nan ox / bull: -alive\n\n[]\nthe sun: round\nice cream:\n"
    cat, ox, sun, ice = parse_things(text, ATTRIBUTES)
    true = [sorted(key for key, fact in each.facts.items() if fact == "Yes") for each in (cat, ox, sun, ice)]
    assert true == [["alive", "animal", "meat"], ["animal"], ["round"], []]
    assert [each.article + each.name for each in (cat, ox, sun, ice)] == ["a cat", "an ox", "the sun", "ice cream"]
    assert ox.aliases == ("bull",)
    for wrong in ("[alive]\na cat: alive", "[alive]\na cat: -meat", "[]\na cat: purring", "[purring]\na cat:"):
        with pytest.raises(ValueError, match="cannot be set here"):
            parse_things(wrong, ATTRIBUTES)


def test_guesses_have_the_right_article():
    for secret in load_things().secrets.values():
        if secret.article in ("a ", "an "):
            assert (secret.article == "an ") == bool(re.match("[aeiou]", secret.name)), secret.name


def test_prompt_is_short():
    assert len(TwentyQuestions().rules().split()) <= 160
