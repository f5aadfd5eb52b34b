"""text_to_sql: equivalent forms of the reference query are right."""

import random
import re
from typing import Any

import pytest

from turnwise.envs.text_to_sql.env import TextToSql

COMMA = r"FROM (\w+) JOIN (\w+) ON (\w+\.\w+ = \w+\.id)(?: (WHERE))?"
GROUPED = r"^SELECT (\w+), (\w+\([*\w]+\)) FROM (\w+) GROUP BY \w+$"
LACKING = r"SELECT (\w+) FROM (\w+) WHERE id NOT IN \(SELECT (\w+) FROM (\w+)\)"
COUNTED = r"^SELECT COUNT\(\*\) FROM (\w+) WHERE (.*)$"
BY_AVERAGE = r"SELECT (\w+) FROM (\w+) WHERE (\w+) ([<>]) \(SELECT AVG\(\w+\) FROM \w+\)"
OF_TARGET = r"^SELECT (\w+)\.(\w+), (\w+)\.(\w+) FROM (\w+) JOIN (\w+) ON (\w+\.\w+) = \w+\.id WHERE (.*)$"
FORMS: dict[str, tuple[str, Any]] = {
    "in a table of its own": (r"^(.*)$", r"WITH x AS (\1) SELECT * FROM x"),
    "in small letters": (r"\b[A-Z]{2,}\b(?!')", lambda found: found[0].lower()),
    "names in large letters": (r"(?<!')\b[a-z_]+\b(?!')", lambda found: found[0].upper()),
    "another order where none is asked for": (r"^((?!.*ORDER BY).*)$", r"\1 ORDER BY 1 DESC"),
    "an average by hand": (r"AVG\(([\w.]+)\)", r"SUM(\1) * 1.0 / COUNT(*)"),
    "a total": (r"SUM\(([\w.]+)\)", r"TOTAL(\1)"),
    "the first of an order": (r"^SELECT MAX\((\w+)\) (?!.*GROUP)(.*)$", r"SELECT \1 \2 ORDER BY \1 DESC LIMIT 1"),
    "groups for DISTINCT": (r"SELECT DISTINCT (\w+) (.*)$", r"SELECT \1 \2 GROUP BY \1"),
    "UNION for DISTINCT": (r"SELECT DISTINCT (\w+) (.*)$", r"SELECT \1 \2 UNION SELECT \1 \2"),
    "one of a list": (r"= ?'(\w+)'", r" IN ('\1')"),
    "quoted otherwise": (r"= ?'(\w+)'", r' = "\1"'),
    "negated": (r"WHERE (\w+) ?> ?(\d+)", r"WHERE NOT \1 <= \2"),
    "a sum of cases": (COUNTED, r"SELECT SUM(CASE WHEN \2 THEN 1 ELSE 0 END) FROM \1"),
    "a filter": (COUNTED, r"SELECT COUNT(*) FILTER (WHERE \2) FROM \1"),
    "NULL by its type": (r"(\w+) IS NULL", r"typeof(\1) = 'null'"),
    "tables with a comma": (
        COMMA,
        lambda found: f"FROM {found[1]}, {found[2]} WHERE {found[3]}{' AND' * bool(found[4])}",
    ),
    "the other table first": (r"FROM (\w+) JOIN (\w+) ON", r"FROM \2 JOIN \1 ON"),
    "grouped by the name": (r"^SELECT ([\w.]+)(.*) GROUP BY \w+\.id", r"SELECT \1\2 GROUP BY \1"),
    "a window for groups": (GROUPED, r"SELECT DISTINCT \1, \2 OVER (PARTITION BY \1) FROM \3"),
    "groups by a query each": (GROUPED, r"SELECT DISTINCT \1, (SELECT \2 FROM \3 i WHERE i.\1 = o.\1) FROM \3 o"),
    "at least one more": (r"HAVING COUNT\(\*\) > (\d+)", lambda found: f"HAVING COUNT(*) >= {int(found[1]) + 1}"),
    "NOT EXISTS": (LACKING, r"SELECT \1 FROM \2 WHERE NOT EXISTS (SELECT 1 FROM \4 WHERE \4.\3 = \2.id)"),
    "an outer join": (LACKING, r"SELECT \2.\1 FROM \2 LEFT JOIN \4 ON \4.\3 = \2.id WHERE \4.id IS NULL"),
    "an average by a window": (BY_AVERAGE, r"SELECT \1 FROM (SELECT *, AVG(\3) OVER () m FROM \2) WHERE \3 \4 m"),
    "by number of the column": (r"ORDER BY COUNT\(\*\)", "ORDER BY 2"),
    "turned round": (r"ORDER BY (\w+) DESC, id DESC", r"ORDER BY -\1, -id"),
    "a query for a cell": (
        OF_TARGET,
        r"SELECT \1.\2, (SELECT \3.\4 FROM \6 WHERE \6.id = \7) FROM \5 WHERE \7 IN (SELECT id FROM \6 WHERE \8)",
    ),
}


@pytest.fixture(scope="module")
def begun() -> list[TextToSql]:
    envs = [TextToSql({"level": level}) for level in ("tiny", "easy", *["full"] * 4) for _ in range(20)]
    for seed, env in enumerate(envs):
        env.reset(random.Random(seed))
    return envs


@pytest.mark.parametrize("form", FORMS)
def test_equivalent_form_of_the_query_is_right(form: str, begun: list[TextToSql]) -> None:
    tried = 0
    for env in begun:
        query = re.sub(*FORMS[form], env.question.query)
        if query != env.question.query and tried < 8:
            tried += 1
            assert env.step(query).success, f"{env.question.text} {query}"
    assert tried
