"""Make the tables of settings of configuration.md and of the pages of algorithms from the source.

A page in algorithms/ that has the settings of an alternative shows them between two comments,

    <!-- settings of algo.loss: ppo gspo -->
    <!-- end -->

and configuration.md links to it. Without names, all alternatives of the choice are meant.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.config.keys import Key, all_keys, choice_of, show_value, walk
from turnwise.config.load import read_settings
from turnwise.config.schema import Config
from turnwise.run.configure import MODELS, SINGLE_TURN
from turnwise.settings.choice import KIND

ALGORITHMS = Path(__file__).parent / "algorithms"
BLOCK = re.compile(
    r"(?P<start><!-- settings of (?P<choice>[\w.]+)(?:: (?P<kinds>[^>]+))? -->\n).*?(?=<!-- end -->)", re.DOTALL
)
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *cells])


def configuration() -> str:
    """Return the generated part of configuration.md."""
    sections: dict[str, list[Key]] = {}
    for key in all_keys().values():
        is_section = key.choice is not None and not key.section  # listed in a table with the settings of its kinds
        sections.setdefault(key.name if is_section else key.section, []).append(key)
    tables = [section_table(name, keys) for name, keys in sections.items() if not pages_of(name)]
    return "\n".join([*tables, tiny_settings()])


def section_table(section: str, keys: Sequence[Key]) -> str:
    if (choice := all_keys().get(section)) is not None and choice.choice is not None:
        heading = "###" if choice.section else "##"
        return f"{heading} {choice.name}\n\n{choice_table(choice)}"
    rows = [settings_row(key) for key in keys]
    intro = f"{type(getattr(Config(), section)).__doc__}\n\n" if section else ""
    return f"## {section or 'The run'}\n\n{intro}{table(('setting', 'values', 'default', 'meaning'), rows)}"


def settings_row(key: Key) -> tuple[str, str, str, str]:
    """Return name, values, default and meaning of a setting; a choice with links to its pages."""
    pages = ", ".join(pages_of(key.name))
    return f"`{key.name}`", values_of(key), show_default(key), f"{key.doc} {pages}".rstrip()


def choice_table(choice: Key, kinds: Sequence[str] = ()) -> str:
    """Return the settings of the alternatives of a choice; those of one name and meaning share a row."""
    assert choice.choice is not None
    shared: dict[tuple[str, str, str, str], list[str]] = {}
    for kind in kinds or choice.choice.table:
        for key in walk(choice.choice.table[kind], f"{choice.name}."):
            shared.setdefault(settings_row(key), []).append(kind)
    rows = [(row[0], ", ".join(of), *row[1:]) for row, of in shared.items()]
    if not choice.section:
        rows.insert(0, (f"`{choice.name}`", "all", *settings_row(choice)[1:]))
    return table(("setting", "of", "values", "default", "meaning"), rows)


def fill_settings(page: str) -> str:
    """Fill the tables of settings of a page in algorithms/."""

    def fill(block: re.Match[str]) -> str:
        settings = choice_table(all_keys()[block["choice"]], (block["kinds"] or "").split())
        return f"{block['start']}\n{settings}\n"

    return BLOCK.sub(fill, page)


@cache
def pages_of(choice: str) -> tuple[str, ...]:
    """Return links from docs/ to the pages of algorithms that have the settings of a choice."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(ALGORITHMS.glob("*.md"))}
    return tuple(
        f"[{text.partition(chr(10))[0].removeprefix('# ')}](algorithms/{name})"
        for name, text in texts.items()
        if any(block["choice"] == choice for block in BLOCK.finditer(text))
    )


def values_of(key: Key) -> str:
    """Return what a setting accepts: int ≥ 1; float ≥ 0, ≤ 1; or names."""
    return key.choice.describe().removeprefix("one of ") if key.choice else type_of(key.schema)


def type_of(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(type_of(each) for each in schema["anyOf"])
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return ", ".join(schema["enum"])
    types = {"null": "none", "boolean": "bool", "string": "str", "object": "table", "integer": "int", "number": "float"}
    if schema["type"] == "array":
        if "prefixItems" in schema:
            return f"{len(schema['prefixItems'])} x {type_of(schema['prefixItems'][0])}"
        items = schema.get("items", {})
        return f"list of {type_of(items)}" if "type" in items else "list"
    bounds = [f"{sign} {schema[name]:g}" for name, sign in BOUNDS.items() if name in schema]
    return " ".join([types[schema["type"]], ", ".join(bounds)]).rstrip()


def show_default(key: Key) -> str:
    return f"`{show_value(key.default)}`"


def tiny_settings() -> str:
    """Return a table of the defaults that are others for the model `tiny`."""
    own, general = flatten(read_settings(MODELS / "tiny.toml")), all_keys()
    single = dict(flatten(read_settings(MODELS / f"tiny{SINGLE_TURN}.toml")))
    rows = [
        (f"`{name}`", f"`{show_value(value)}`", f"`{show_value(single.get(name, value))}`", show_default(general[name]))
        for name, value in own
    ]
    intro = (
        "What a run of `tiny` uses instead, in an environment without a recipe. Single turns: in a fully observable\n"
        "environment, such as those of Gymnasium, where it sees one turn at a time.\n\n"
    )
    return f"## Defaults of tiny\n\n{intro}{table(('setting', 'tiny', 'single turns', 'other models'), rows)}"


def flatten(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by dotted name. The `kind` of a choice is its value; that of env is a setting of its own."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from flatten(value, f"{name}.")
        else:
            yield (prefix.rstrip(".") if key == KIND and choice_of(name) else name), value
