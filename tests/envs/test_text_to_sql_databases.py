"""Text to SQL: who overlooks a word of the question is wrong, and there are questions enough."""

import random
import re
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from turnwise.envs.seeds import split_of_state
from turnwise.envs.text_to_sql.databases import make_check_databases, make_database, make_distractors, plant_rows
from turnwise.envs.text_to_sql.env import QUESTION_GENERATORS, TextToSql
from turnwise.envs.text_to_sql.questions import PlantedRows, SqlQuestion
from turnwise.envs.text_to_sql.schemas import SCHEMAS, TINY


def begun(level: str, seed: int) -> TextToSql:
    env = TextToSql({"level": level})
    env.reset(random.Random(seed))
    return env


@pytest.mark.parametrize(
    ("slip", "pattern", "instead"),
    [
        ("no WHERE", r" WHERE .*?(?= GROUP BY| ORDER BY|$)", ""),
        ("no HAVING", r" HAVING .*$", ""),
        ("at least for above", r"([<>])(?= ?\d)", r"\1="),
        ("above for at least", r"(?<=[<>])=(?= ?\d)", ""),
        ("no DISTINCT", "DISTINCT ", ""),
        ("equals in any order", r", (\w+\.)?id( DESC)? LIMIT", " LIMIT"),
        ("one more", r"(LIMIT \d)", r"\1 + 1"),
        ("another function", r"\b(AVG|MIN|SUM)\(", "MAX("),
        ("one more than was said", r"(?<=[<>=])( ?)(\d+)", lambda found: f"{found[1]}{int(found[2]) + 1}"),
        ("one less than was said", r"(?<=[<>=])( ?)(\d+)", lambda found: f"{found[1]}{int(found[2]) - 1}"),
        ("another column of tiny", r"\b[abd]\b(?=\)? FROM t\b)", lambda found: "abda"["abd".index(found[0]) + 1]),
        ("another column in its condition", r"\b[abd]\b(?=[<>=])", lambda found: "abda"["abd".index(found[0]) + 1]),
    ],
)
def test_a_query_that_overlooks_a_word_is_wrong(slip: str, pattern: str, instead: Any) -> None:
    tried = 0
    for level, count in (("tiny", 40), ("easy", 60), ("full", 60)):
        for seed in range(count):
            env = begun(level, seed)
            changed = re.sub(pattern, instead, env.question.query)
            if changed != env.question.query:
                tried += 1
                outcome = env.step(changed)
                assert outcome.over and not outcome.success, f"{slip}: {env.question.text} {changed}"
    assert tried >= 3


@pytest.mark.parametrize(
    "maker", [*QUESTION_GENERATORS["full"], *QUESTION_GENERATORS["tiny"]], ids=lambda maker: maker.__name__
)
def test_databases_that_tell_are_found_for_every_kind_of_question(maker: Any) -> None:
    """Else a kind would vanish without a word."""
    rng, found = random.Random(0), 0
    schemas = [TINY] if maker in QUESTION_GENERATORS["tiny"] else list(SCHEMAS.values())
    for turn in range(12):
        schema = schemas[turn % len(schemas)]
        found += make_check_databases(maker(rng, schema), schema, rng) is not None
    assert found >= 10


def test_near_misses_are_those_of_the_query() -> None:
    query = "SELECT DISTINCT a FROM t WHERE b > 5"
    wanted = {
        "SELECT DISTINCT a FROM t",
        "SELECT DISTINCT a FROM t WHERE b >= 5",
        "SELECT DISTINCT a FROM t WHERE b > 6",
        "SELECT DISTINCT a FROM t WHERE b > 4",
        "SELECT a FROM t WHERE b > 5",
    }
    assert set(make_distractors(SqlQuestion(text="?", query=query))) == wanted
    assert set(make_distractors(SqlQuestion(text="?", query=query, alike=("b", "d")))) == wanted | {
        "SELECT DISTINCT a FROM t WHERE d > 5"
    }
    assert make_distractors(SqlQuestion(text="?", query="SELECT a, COUNT(*) FROM t GROUP BY a")) == ()


def test_a_planted_number_stands_in_as_many_rows_as_it_should() -> None:
    for seed in range(5):
        rng = random.Random(seed)
        with closing(make_database(SCHEMAS["shop"], rng)) as connection:
            plant_rows(connection, PlantedRows(table="products", column="stock", values=(777, 777, 778)), rng)
            plant_rows(connection, PlantedRows(table="orders", column="quantity", values=(888,), ref="product_id"), rng)
            assert connection.execute("SELECT COUNT(*) FROM products WHERE stock = 777").fetchone() == (2,)
            assert connection.execute("SELECT COUNT(*) FROM products WHERE stock = 778").fetchone() == (1,)
            (of,) = connection.execute("SELECT DISTINCT product_id FROM orders WHERE quantity = 888").fetchall()
            others = connection.execute("SELECT 1 FROM orders WHERE product_id = ? AND quantity <> 888", of)
            assert others.fetchall() == []


def test_every_split_of_tiny_has_many_questions_and_they_are_short() -> None:
    rng, env, texts = random.Random(0), TextToSql({"level": "tiny"}), set[str]()
    for _ in range(4000):
        env.schema, env.seen = TINY, ""
        env.question = env._question(rng)
        texts.add(env.state_key())
        assert len(env.question.query) < 40 and len(env.question.text) < 20
    counts = Counter(split_of_state(text) for text in texts)
    assert min(counts["train"], counts["validation"], counts["test"]) >= 100
