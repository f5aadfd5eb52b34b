from collections import defaultdict

import pytest

from turnwise.envs.guess_city.env import GuessCity, load_cities
from turnwise.envs.guessing.facts import UNKNOWN, TopicQuestion

PARIS = {
    "Which continent is it on?": "It is in Europe.",
    "What continent is the city located in?": "It is in Europe.",
    "Is it in Europe?": "Yes.",
    "Is it an Asian city?": "No.",
    "Is it in France?": "Yes.",
    "Is it in the UK?": "No.",
    "Is it north or south of the equator?": "It is north of the equator.",
    "Is it in the southern hemisphere?": "No.",
    "Is it in the northern hemisphere?": "Yes.",
    "Which language do people speak there?": "People speak French.",
    "Is English spoken there?": "No.",
    "Is the main language French?": "Yes.",
    "What is its population?": "It has over 10 million people.",
    "Does it have more than 10 million people?": "Yes.",
    "Does it have less than 1 million people?": "No.",
    "What is the climate?": "The climate is mild.",
    "What is it known for?": "It is famous for a tower.",
    "Is it famous for a bridge?": "No.",
    "Which side do cars drive on?": "Cars drive on the right.",
    "Do they drive on the left?": "No.",
    "Is it the capital city?": "Yes.",
    "Is it near the coast?": "No.",
    "Is there a river?": "Yes.",
    "Has it hosted the Olympic Games?": "Yes.",
    "Is it on an island?": "No.",
    "Is it at high altitude?": "No.",
}


def test_questions_are_answered_from_the_facts():
    assert {question: load_cities().answer("Paris", question).answer for question in PARIS} == PARIS


@pytest.mark.parametrize(
    "question",
    [
        "Which country is it in?",
        "Is it in Mexico City?",
        "Is it north of Paris?",
        "Is it in the south of Europe?",
        "Is it not a capital?",
        "Is it the capital of France?",
        "Is it in Europe or Asia?",
        "Do they speak French or English?",
        "What does its name start with?",
        "Tell me the city.",
    ],
)
def test_unknown_questions_are_answered_as_unknown(question):
    assert load_cities().answer("Paris", question).answer == UNKNOWN


def test_sample_facts_are_true():
    facts = {name: city.facts for name, city in load_cities().secrets.items()}
    assert facts["Sydney"]["hemisphere"] == facts["Lima"]["hemisphere"] == facts["Jakarta"]["hemisphere"] == "south"
    assert facts["Sydney"]["capital"] == facts["Istanbul"]["capital"] == "No" != facts["Canberra"]["capital"]
    assert facts["London"]["side"] == facts["Tokyo"]["side"] == facts["Hong Kong"]["side"] == "left"
    assert facts["Madrid"]["coast"] == facts["Cairo"]["coast"] == "No" != facts["Havana"]["coast"]
    assert facts["Denver"]["high"] == facts["Nairobi"]["high"] == "Yes" != facts["Cairo"]["high"]


def test_every_value_can_be_asked_for():
    table = load_cities()
    for topic in (topic for topic in load_cities().topics if topic.value_question):
        values = {city.facts[topic.key] for city in table.secrets.values()}
        assert set(topic.synonyms.values()) <= values
        for value in values:
            question = TopicQuestion(topic, value)
            assert table.parse(question.text) == question
            true = {name for name in table.secrets if table.answer(name, question.text).answer == "Yes."}
            assert true == {name for name, city in table.secrets.items() if city.facts[topic.key] == value}


def test_every_synonym_asks_for_its_value():
    for topic in load_cities().topics:
        for phrase, value in topic.synonyms.items():
            assert load_cities().parse(f"Is it {phrase}?") == TopicQuestion(topic, value)


def test_facts_of_a_country_are_consistent():
    by_country = defaultdict(list)
    for city in load_cities().secrets.values():
        by_country[city.facts["country"]].append(city)
        for key in ("capital", "coast", "river", "high", "olympics", "island"):
            assert city.facts[key] in ("Yes", "No")
        assert all(city.facts.values())
    for country, places in by_country.items():
        assert sum(city.facts["capital"] == "Yes" for city in places) <= 1, country
        assert len({city.facts["island"] for city in places}) == 1, country
        if country not in ("China", "Turkey"):  # Hong Kong keeps left; Turkey lies on two continents
            assert len({(city.facts["side"], city.facts["continent"]) for city in places}) == 1, country


def test_table_has_150_cities_and_enough_topics():
    assert len(load_cities().secrets) >= 120 and len(load_cities().topics) >= 10
    assert len(GuessCity().rules().split()) <= 140
