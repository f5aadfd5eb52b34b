"""Write the generated parts of the reference pages: `python docs/generate.py`, or `make docs`.

A page's text above MARKER is written by hand. Below it, everything comes from the source: descriptions of settings
(`config/`), the parsers of the commands (`cli/`), docstrings of public names, `record/catalogue.py`. Edit them
there.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cyclopts import App, Argument

import turnwise as tw
from turnwise.cli.commands import COMMANDS
from turnwise.cli.main import make_app
from turnwise.config.keys import Key, all_keys, show_value, walk
from turnwise.config.load import read_settings
from turnwise.config.schema import Config
from turnwise.engine.engines import ENGINES
from turnwise.recipes.presets import recipe_names
from turnwise.record.catalogue import METRICS, Metric
from turnwise.run.configure import MODELS, SINGLE_TURN, load_recipe
from turnwise.settings.choice import Choice
from turnwise.settings.section import Section
from turnwise.tools.docstrings import split_docstring

DOCS = Path(__file__).parent
MAX_LINE = 100
FunctionDefinition = ast.FunctionDef | ast.AsyncFunctionDef
MARKER = "<!-- Generated from here on by docs/generate.py. Do not edit: run `make docs`. -->\n"

PYTHON_GROUPS = {
    "Runs": (
        "train",
        "sft",
        "evaluate",
        "load_run",
        "Run",
        "EvaluationResult",
        "Rows",
        "Config",
        "UserError",
        "InfrastructureFailure",
    ),
    "Agents": ("Trainer", "AgentResult", "Group", "Trajectory", "Evaluation"),
    "Environments": ("TextEnv", "StrictParams", "Outcome", "won", "lost", "goes_on"),
    "Environments with messages": (
        "Env",
        "Task",
        "Observation",
        "StepResult",
        "Message",
        "TextPart",
        "Image",
        "ToolSpec",
        "Picture",
        "system",
        "user",
    ),
    "Tools": ("ToolEnv", "tool", "Tool", "ToolResult", "ToolError"),
    "Algorithms": ("Advantage", "AdvantageInputs", "AdvantageResult", "Loss", "Filter", "LossInputs", "LossResult"),
}


def main() -> None:
    for name, generate in PAGES.items():
        path = DOCS / name
        path.write_text(update(path.read_text(encoding="utf-8"), generate()), encoding="utf-8")


def update(page: str, generated: str) -> str:
    """Replace the part of a page below the marker."""
    head, marker, _ = page.partition(MARKER)
    if not marker:
        raise ValueError(f"the page has no line {MARKER!r}")
    return f"{head}{marker}\n{generated}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *cells])


# configuration.md


def configuration() -> str:
    sections: dict[str, list[Key]] = {}
    for key in all_keys().values():
        sections.setdefault(key.section, []).append(key)
    tables = [settings_table(name, keys) for name, keys in sections.items()]
    return "\n".join([*tables, tiny_settings(), recipe_settings()])


def settings_table(section: str, keys: Sequence[Key]) -> str:
    if (choice := all_keys().get(section)) is not None and choice.choice is not None:
        return choice_table(choice)
    rows = [(f"`{key.name}`", allowed_values(key), f"`{show_value(key.default)}`", key.doc) for key in keys]
    intro = f"{type(getattr(Config(), section)).__doc__}\n\n" if section else ""
    return f"## {section or 'The run'}\n\n{intro}{table(('setting', 'values', 'default', 'meaning'), rows)}"


def choice_table(choice: Key) -> str:
    """Return the settings of the alternatives of a choice. Those of one name and meaning share a row."""
    assert choice.choice is not None
    kinds: dict[tuple[str, str, str, str], list[str]] = {}
    for kind, chosen in choice.choice.table.items():
        for key in walk(chosen, f"{choice.name}."):
            row = (f"`{key.name}`", allowed_values(key), f"`{show_value(key.default)}`", key.doc)
            kinds.setdefault(row, []).append(kind)
    rows = [(row[0], ", ".join(of), *row[1:]) for row, of in kinds.items()]
    return f"### {choice.name}\n\n{table(('setting', 'of', 'values', 'default', 'meaning'), rows)}"


def allowed_values(key: Key) -> str:
    return f"one of {', '.join(ENGINES)}" if key.name == "engine.kind" else key.allowed


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


def show_default(key: Key) -> str:
    return f"`{show_value(key.default)}`"


def recipe_settings() -> str:
    """Return a table of the settings that recipes change, except those of their environment."""
    changes: dict[str, dict[str, list[str]]] = {}
    for recipe in recipe_names():
        for name, value in flatten(load_recipe(recipe)):
            if not name.startswith("env.") and value != all_keys()[name].default:
                changes.setdefault(name, {}).setdefault(show_value(value), []).append(recipe)
    rows = [(f"`{name}`", list_values(changes[name])) for name in all_keys() if name in changes]
    return f"## Values in the recipes\n\n{table(('setting', 'recipes that change it'), rows)}"


def list_values(recipes_by_value: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"`{value}`: {', '.join(recipes)}" for value, recipes in recipes_by_value.items())


SECTIONS = Config.model_fields
"""Their `kind` is a setting of its own; that of a choice is its value."""


def flatten(settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            for key, each in flatten(value):
                yield name if key == "kind" and name not in SECTIONS else f"{name}.{key}", each
        else:
            yield name, value


# commands.md


def commands() -> str:
    app = make_app()
    return "\n".join(command(name, app[name]) for name in COMMANDS)


def command(name: str, app: App) -> str:
    summary, _, examples = (app.help or "").partition("\n\n")
    usage = (app.usage or "").removeprefix("Usage: ").strip()
    parts = [f"## turnwise {name}\n", f"{summary}\n", f"Usage: `{usage}`\n"]
    if examples:
        lines = [re.sub(r"(\S) {2,}(\S)", r"\1  # \2", line) for line in examples.splitlines()]
        parts.append("```bash\n" + "\n".join(lines) + "\n```\n")
    shown = [argument for argument in app.assemble_argument_collection(parse_docstring=True) if argument.show]
    if shown:
        rows = [(f"`{typed(each)}`", " ".join((each.parameter.help or "").split())) for each in shown]
        parts.append(table(("argument", "meaning"), rows))
    if "SECTION.KEY" in usage:
        parts.append("Any setting can follow as `--SECTION.KEY VALUE`: [configuration.md](configuration.md).\n")
    return "\n".join(parts)


def typed(argument: Argument) -> str:
    """Return an argument as it is typed: `RUN`, `--open`, `--port N`."""
    if not argument.name.startswith("-") or argument.hint is bool:
        return argument.name
    return f"{argument.name} {argument.parameter.metavar or metavar(argument.hint)}"


def metavar(hint: Any) -> str:
    types = (hint, *get_args(hint))
    choices = next((get_args(each) for each in types if get_origin(each) is Literal), ())
    return "|".join(choices) or ("N" if int in types else "VALUE")


# python-api.md


def python_api() -> str:
    listed = [name for names in PYTHON_GROUPS.values() for name in names]
    if sorted(listed) != sorted(tw.PUBLIC):
        raise ValueError(f"not in PYTHON_GROUPS, or not public: {', '.join(set(listed) ^ set(tw.PUBLIC))}")
    parts = []
    for group, names in PYTHON_GROUPS.items():
        parts += [f"## {group}\n", *(public_name(name, getattr(tw, name)) for name in names)]
    return "\n".join(parts)


def public_name(name: str, value: Any) -> str:
    definition = parse_definition(value)
    if isinstance(definition, ast.ClassDef):
        parts = (
            f"### tw.{name}",
            constructor(value, definition),
            inspect.getdoc(value),
            members_table(value, definition),
        )
        return "\n".join(str(part) for part in parts)
    described = f"\n{arguments_table(value)}" if arguments_table(value) else ""
    description, _ = split_docstring(inspect.getdoc(value) or "", inspect.signature(value).parameters)
    return f"### tw.{name}\n\n```pyi\n{signature(definition, f'tw.{name}')}\n```\n\n{description}\n{described}"


def constructor(cls: type, definition: ast.ClassDef) -> str:
    """Return the signature of a class whose `__init__` describes its arguments, and the table of them."""
    arguments = arguments_table(inspect.getattr_static(cls, "__init__"))
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and arguments:
            written = signature(node, f"tw.{cls.__name__}").removesuffix(" -> None")
            return f"\n```pyi\n{written}\n```\n\n{arguments}"
    return ""


def arguments_table(function: Callable[..., Any]) -> str:
    """Return the table of the arguments that a docstring describes; empty without any."""
    _, arguments = split_docstring(inspect.getdoc(function) or "", inspect.signature(function).parameters)
    rows = [(f"`{argument}`", text) for argument, text in arguments.items()]
    return table(("argument", "meaning"), rows) if rows else ""


def parse_definition(value: Any) -> ast.ClassDef | FunctionDefinition:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    assert isinstance(definition, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return definition


def signature(function: FunctionDefinition, name: str, *, one_line: bool = False) -> str:
    """Return the signature as written, without self or cls; one argument per line if it is long."""
    returns = f" -> {type_name(function.returns)}" if function.returns else ""
    arguments = argument_list(function.args)
    line = f"{name}({', '.join(arguments)}){returns}"
    lines = "".join(f"    {each},\n" for each in arguments)
    return line if one_line or len(line) <= MAX_LINE else f"{name}(\n{lines}){returns}"


def argument_list(given: ast.arguments) -> list[str]:
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + given.defaults
    shown = [argument(*pair) for pair in zip(positional, defaults, strict=True)]
    if given.posonlyargs:
        shown.insert(len(given.posonlyargs), "/")
    if positional and positional[0].arg in ("self", "cls"):
        del shown[0]
    star = f"*{argument(given.vararg)}" if given.vararg else "*"
    named = [argument(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    rest = [f"**{argument(given.kwarg)}"] if given.kwarg else []
    return [*shown, *([star] if given.vararg or named else []), *named, *rest]


def argument(given: ast.arg, default: ast.expr | None = None) -> str:
    annotation = f": {type_name(given.annotation)}" if given.annotation else ""
    return f"{given.arg}{annotation}" + (f" = {to_source(default)}" if default else "")


def type_name(annotation: ast.expr) -> str:
    """Return an annotation without the quotes of a forward reference."""
    return str(annotation.value) if isinstance(annotation, ast.Constant) else to_source(annotation)


def to_source(node: ast.expr) -> str:
    return ast.unparse(node).replace("'", '"')


def members_table(cls: type, definition: ast.ClassDef) -> str:
    lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
    rows, is_plain_section = [], issubclass(cls, Section) and not issubclass(cls, Choice)
    for node, next_node in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = f" = {to_source(node.value)}" if node.value and not isinstance(node.value, ast.Call) else ""
            name = f"{node.target.id}: {type_name(node.annotation)}{default}"
            rows.append((name, field_meaning(cls, node.target.id, lines[node.lineno - 1], next_node)))
        elif isinstance(node, FunctionDefinition | ast.ClassDef) and not is_plain_section:
            rows.append((member_name(node), member_meaning(node)))
    wiring = ("_", "needs()", "lacks()", "from_function(", "uses:") if issubclass(cls, Choice) else ("_",)
    public = [(f"`{name}`", meaning) for name, meaning in rows if not name.startswith(wiring)]
    return "\n" + table(("member", "meaning"), public) if public else ""


def member_meaning(node: FunctionDefinition | ast.ClassDef) -> str:
    """Return a member's docstring in one line, with its arguments at the end."""
    names = [] if isinstance(node, ast.ClassDef) else [each.arg for each in [*node.args.args, *node.args.kwonlyargs]]
    description, arguments = split_docstring(ast.get_docstring(node) or "", names)
    described = "; ".join(f"`{name}`: {text.removesuffix('.')}" for name, text in arguments.items())
    return " ".join(f"{description} {described}{'.' * bool(described)}".split())


def field_meaning(cls: type, name: str, line: str, next_node: ast.stmt | None) -> str:
    """Return the comment and the docstring of a field; for a section of the configuration, its docstring."""
    comment, text = line.partition("  # ")[2], ""
    if isinstance(next_node, ast.Expr) and isinstance(next_node.value, ast.Constant):
        text = str(next_node.value.value)
    elif issubclass(cls, Section) and name in cls.model_fields:
        text = getattr(cls.model_fields[name].annotation, "__doc__", "")
    return " ".join(f"{comment}. {text}".split()) if comment and text else " ".join((text or comment).split())


def member_name(node: FunctionDefinition | ast.ClassDef) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    is_property = any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)
    if is_property and node.returns:
        return f"{node.name}: {type_name(node.returns)}"
    return signature(node, node.name, one_line=True)


# metrics.md


def metrics() -> str:
    families: dict[str, list[Metric]] = {}
    for metric in METRICS:
        families.setdefault(metric.name.partition("/")[0], []).append(metric)
    return "\n".join(metrics_table(prefix, family) for prefix, family in families.items())


def metrics_table(prefix: str, family: Sequence[Metric]) -> str:
    rows = [(f"`{metric.name}`", metric.unit or "number", metric.meaning, shown_in(metric)) for metric in family]
    return f"## {prefix}\n\n{table(('metric', 'unit', 'meaning', 'shown in'), rows)}"


def shown_in(metric: Metric) -> str:
    line = [] if metric.line is None else [f"progress line ({metric.line[0]})"]
    return ", ".join([*line, *metric.places]) or "viewer, below"


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "commands.md": commands,
    "python-api.md": python_api,
    "metrics.md": metrics,
}

if __name__ == "__main__":
    main()
