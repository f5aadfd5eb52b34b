"""Topics of questions about a city: the question, the form of its answer, and the phrases that identify it."""

from turnwise.envs.guessing.facts import Topic

TOPICS = (
    Topic(
        key="continent",
        question="Which continent is it on?",
        answer="It is in {}.",
        value_question="Is it in {}?",
        phrases=("continent", "part of the world"),
        synonyms={
            "European": "Europe",
            "Asian": "Asia",
            "African": "Africa",
            "North American": "North America",
            "South American": "South America",
            "Australian continent": "Oceania",
        },
    ),
    Topic(
        key="country",
        value_question="Is it in {}?",
        phrases=(),
        synonyms={
            "UK": "the United Kingdom",
            "Britain": "the United Kingdom",
            "Great Britain": "the United Kingdom",
            "USA": "the United States",
            "US": "the United States",
            "United States of America": "the United States",
            "UAE": "the United Arab Emirates",
        },
    ),
    Topic(
        key="hemisphere",
        question="Is it north or south of the equator?",
        answer="It is {} of the equator.",
        value_question="Is it {} of the equator?",
        phrases=("north or south", "equator", "hemisphere", "northern or southern"),
        synonyms={"northern": "north", "southern": "south", "above the equator": "north", "below the equator": "south"},
    ),
    Topic(
        key="language",
        question="Which language do people speak?",
        answer="People speak {}.",
        value_question="Do people speak {}?",
        phrases=("language", "speak", "spoken", "main language", "languages"),
    ),
    Topic(
        key="population",
        question="How many people live there?",
        answer="It has {} people.",
        value_question="Does it have {} people?",
        phrases=("population", "how many people", "inhabitants", "how big", "how large"),
        synonyms={"less than 1 million": "under 1 million", "more than 10 million": "over 10 million"},
    ),
    Topic(
        key="climate",
        question="What climate does it have?",
        answer="The climate is {}.",
        value_question="Is the climate {}?",
        phrases=("climate", "weather"),
        synonyms={"desert": "dry", "temperate": "mild"},
    ),
    Topic(
        key="landmark",
        question="What is it famous for?",
        answer="It is famous for {}.",
        value_question="Is it famous for {}?",
        phrases=("famous", "famous for", "known for", "landmark", "famous landmark", "sights"),
    ),
    Topic(
        key="side",
        question="Which side do cars drive on?",
        answer="Cars drive on the {}.",
        value_question="Do cars drive on the {}?",
        phrases=("drive", "cars", "cars drive", "side", "side of the road", "left or right"),
    ),
    Topic(key="capital", question="Is it a capital?", phrases=("capital", "capital city", "capital of its country")),
    Topic(
        key="coast",
        question="Is it by the sea?",
        phrases=("sea", "near the sea", "coast", "near the coast", "coastal", "ocean", "near the ocean"),
    ),
    Topic(
        key="river",
        question="Does a large river run through it?",
        phrases=("river", "large river", "big river", "river run through", "river flow through"),
    ),
    Topic(
        key="high",
        question="Is it higher than 1000 m?",
        phrases=("high up", "high above the sea", "high altitude", "altitude", "elevation"),
    ),
    Topic(
        key="olympics",
        question="Did it host the Olympics?",
        phrases=(
            "olympics",
            "olympic games",
            "hosted the olympics",
            "host the olympic games",
            "hosted the olympic games",
        ),
    ),
    Topic(
        key="island",
        question="Is it in an island country?",
        phrases=("island", "island country", "island nation", "islands"),
    ),
)
"""`country` has no question of its own: its answer would all but end the game."""
