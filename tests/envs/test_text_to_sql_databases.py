"""text_to_sql databases: careless readings of a question are wrong, and there are enough questions."""

import random
import re
from collections import Counter
from contextlib import closing
from functools import cache
from typing import Any

import pytest

from turnwise.envs.seeds import split_of_state
from turnwise.envs.text_to_sql.databases import make_check_databases, make_database, make_distractors, plant_rows
from turnwise.envs.text_to_sql.env import QUESTION_GENERATORS, TextToSql
from turnwise.envs.text_to_sql.questions import PlantedRows, SqlQuestion
from turnwise.envs.text_to_sql.schemas import SCHEMAS, TINY


@cache  # an answer changes nothing in it but the last query
def make_env(level: str, seed: int) -> TextToSql:
    env = TextToSql({"level": level})
    env.reset(random.Random(seed))
    return env


@pytest.mark.parametrize(
    ("mistake", "pattern", "replacement"),
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
def test_query_with_one_mistake_is_wrong(mistake: str, pattern: str, replacement: Any) -> None:
    tried = 0
    for level, count in (("tiny", 40), ("easy", 60), ("full", 60)):
        for seed in range(count):
            env = make_env(level, seed)
            changed = re.sub(pattern, replacement, env.question.query)
            if changed != env.question.query:
                tried += 1
                outcome = env.step(changed)
                assert outcome.over and not outcome.success, f"{mistake}: {env.question.text} {changed}"
    assert tried >= 3


@pytest.mark.parametrize(
    "maker", [*QUESTION_GENERATORS["full"], *QUESTION_GENERATORS["tiny"]], ids=lambda maker: maker.__name__
)
def test_check_databases_are_found_for_every_generator(maker: Any) -> None:
    """Otherwise a generator would silently contribute no task."""
    rng, found = random.Random(0), 0
    schemas = [TINY] if maker in QUESTION_GENERATORS["tiny"] else list(SCHEMAS.values())
    for turn in range(12):
        schema = schemas[turn % len(schemas)]
        found += make_check_databases(maker(rng, schema), schema, rng) is not None
    assert found >= 10


def test_make_distractors_edits_the_query() -> None:
    query = "SELECT DISTINCT a FROM t WHERE b > 5"
    expected = {
        "SELECT DISTINCT a FROM t",
        "SELECT DISTINCT a FROM t WHERE b >= 5",
        "SELECT DISTINCT a FROM t WHERE b > 6",
        "SELECT DISTINCT a FROM t WHERE b > 4",
        "SELECT a FROM t WHERE b > 5",
    }
    assert set(make_distractors(SqlQuestion(text="?", query=query))) == expected
    assert set(make_distractors(SqlQuestion(text="?", query=query, similar_columns=("b", "d")))) == expected | {
        "SELECT DISTINCT a FROM t WHERE d > 5"
    }
    assert make_distractors(SqlQuestion(text="?", query="SELECT a, COUNT(*) FROM t GROUP BY a")) == ()


def test_plant_rows_changes_the_right_number_of_rows() -> None:
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


def test_level_tiny_has_many_short_questions_in_every_split() -> None:
    rng, env, texts = random.Random(0), TextToSql({"level": "tiny"}), set[str]()
    for _ in range(4000):
        env.schema, env.last_query = TINY, ""
        env.question = env._draw_question(rng)
        texts.add(env.state_key())
        assert len(env.question.query) < 40 and len(env.question.text) < 20
    counts = Counter(split_of_state(text) for text in texts)
    assert min(counts["train"], counts["validation"], counts["test"]) >= 100
