"""A result as text: one line a row, and every kind of value can be told from every other."""

from turnwise.tools.sql_query import COUNTED, Cell, Rows

SEPARATOR = " | "
MAX_CELL = 100
"""Characters."""


def table_text(rows: Rows, max_cell: int = MAX_CELL) -> str:
    """
    name | age
    Ann | 31
    Bob | NULL
    ... 7 more rows
    """
    lines = [SEPARATOR.join(_cut(_line(name), max_cell) for name in rows.columns)]
    lines += [SEPARATOR.join(_cell(cell, max_cell) for cell in row) for row in rows.rows]
    if rows.more:
        lines.append(f"... {_count(rows.more)}")
    elif not rows.rows:
        lines.append("(no rows)")
    return "\n".join(lines)


def _count(more: int) -> str:
    if more > COUNTED:
        return f"more than {COUNTED} more rows"
    return f"{more} more row{'s' * (more != 1)}"


def _cell(value: Cell, max_cell: int) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return _cut(f"x'{value[:max_cell].hex()}'", max_cell)
    if isinstance(value, str):
        return _cut(_quoted(value[: max_cell + 1]), max_cell)
    return repr(value)


def _quoted(text: str) -> str:
    """Bare, unless it could be taken for NULL, a number, nothing, two cells or two rows."""
    plain = text and text == text.strip() and text[0] not in "'.(" and "|" not in text and len(text.splitlines()) == 1
    if plain and text.upper() != "NULL" and not _is_number(text):
        return text
    quoted = text.replace("'", "''")
    return _line(f"'{quoted}'")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _line(text: str) -> str:
    """Without breaks, which would make two rows of one."""
    return "\\n".join(text.splitlines())


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
