"""Write the generated parts of the reference pages: `python docs/generate.py`, or `make docs`.

A page's text above MARKER is written by hand. Below it, everything comes from the source: descriptions of settings
(`config/`), the parsers of the commands (`cli/`), docstrings of public names, `record/metrics.toml`, messages of
errors. Edit them there. The pages of algorithms have tables of settings (settings_tables.py).
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cyclopts import App, Argument
from errors_page import errors
from settings_tables import ALGORITHMS, configuration, fill_settings, table

import turnwise as tw
from turnwise.cli.commands import COMMANDS
from turnwise.cli.main import make_app
from turnwise.record.catalogue import METRICS, Metric
from turnwise.settings.choice import Choice
from turnwise.settings.section import Section
from turnwise.tools.docstrings import split_docstring

DOCS = Path(__file__).parent
MAX_LINE = 100
FunctionDefinition = ast.FunctionDef | ast.AsyncFunctionDef
MARKER = "<!-- Generated from here on by docs/generate.py. Do not edit: run `make docs`. -->\n"

WIRING = (
    *("_", "needs()", "lacks()", "from_function(", "uses:"),
    *("runner:", "services:", "view_params:", "common_params(", "stream_params(", "knows_state(", "state_judge("),
    *("judges(", "image_params(", "build_tools(", "servers(", "calling_text(", "tools_in_words("),
)
"""Members of base classes that turnwise itself calls: no environment or algorithm of a user needs them."""

PYTHON_GROUPS = {
    "Runs": (
        "train",
        "sft",
        "evaluate",
        "load_run",
        "Run",
        "EvaluationResult",
        "ReplayResult",
        "Branches",
        "Rows",
        "Config",
        "UserError",
        "InfrastructureFailure",
    ),
    "Agents": ("Trainer", "AgentResult", "Group", "Trajectory", "Evaluation"),
    "Environments": ("TextEnv", "StrictParams", "Outcome", "won", "lost", "goes_on", "to_gymnasium"),
    "Environments with several roles": ("RolesEnv", "RolesOutcome", "tell", "finish"),
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
    "Sources, estimators and rewards": (
        "SourceSettings",
        "Source",
        "Rollout",
        "EstimatorSettings",
        "EngineSettings",
        "Estimator",
        "Estimate",
        "IdleReason",
        "RunParts",
        "Part",
        "RewardFunction",
    ),
    "Algorithms": (
        "Advantage",
        "AdvantageInputs",
        "AdvantageResult",
        "Loss",
        "SelectingLoss",
        "PairLoss",
        "Filter",
        "LossInputs",
        "LossResult",
        "PairInputs",
        "PairResult",
    ),
}


def main() -> None:
    for name, generate in PAGES.items():
        path = DOCS / name
        path.write_text(update(path.read_text(encoding="utf-8"), generate()), encoding="utf-8")
    for path in ALGORITHMS.glob("*.md"):
        path.write_text(fill_settings(path.read_text(encoding="utf-8")), encoding="utf-8")


def update(page: str, generated: str) -> str:
    """Replace the part of a page below the marker."""
    head, marker, _ = page.partition(MARKER)
    if not marker:
        raise ValueError(f"the page has no line {MARKER!r}")
    return f"{head}{marker}\n{generated}"


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
        created = inspect.getattr_static(value, "__init__")
        described = arguments_table(created) if inspect.isfunction(created) else ""
        parts = (f"### tw.{name}", described, inspect.getdoc(value), members_table(value, definition))
        return "\n".join(str(part) for part in parts)
    description, _ = split_docstring(inspect.getdoc(value) or "", inspect.signature(value).parameters)
    if described := arguments_table(value):
        keywords = next((f" Arguments from `{each.arg}` on are keywords." for each in definition.args.kwonlyargs), "")
        returns = f" Returns `{type_name(definition.returns)}`." if definition.returns else ""
        return f"### tw.{name}\n\n{description}{keywords}{returns}\n\n{described}"
    return f"### tw.{name}\n\n```pyi\n{signature(definition, f'tw.{name}')}\n```\n\n{description}\n"


def arguments_table(function: Callable[..., Any]) -> str:
    """Return the table of the arguments that a docstring describes, with types and defaults; empty without any."""
    _, arguments = split_docstring(inspect.getdoc(function) or "", inspect.signature(function).parameters)
    definition = parse_definition(function) if arguments else None
    if isinstance(definition, ast.ClassDef) or definition is None:
        return ""
    written = {each.lstrip("*").partition(":")[0]: each for each in argument_list(definition.args)}
    return table(("argument", "meaning"), [(f"`{written[name]}`", text) for name, text in arguments.items()])


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
    if cls is tw.Config:
        return "\nSections and their settings: [configuration.md](configuration.md).\n"
    lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
    rows, is_plain_section = [], issubclass(cls, Section) and not issubclass(cls, Choice)
    for node, next_node in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = f" = {to_source(node.value)}" if node.value and not isinstance(node.value, ast.Call) else ""
            name = f"{node.target.id}: {type_name(node.annotation)}{default}"
            rows.append((name, field_meaning(cls, node.target.id, lines[node.lineno - 1], next_node)))
        elif isinstance(node, FunctionDefinition | ast.ClassDef) and not is_plain_section:
            rows.append((member_name(node), member_meaning(node)))
    wiring = WIRING if issubclass(cls, Choice | tw.TextEnv) else ("_", "uses:")
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
    rows = [
        (f"`{metric.name}`", metric.unit or "number", f"{metric.meaning} {shown_in(metric)}".rstrip())
        for metric in family
    ]
    return f"## {prefix}\n\n{table(('metric', 'unit', 'meaning'), rows)}"


def shown_in(metric: Metric) -> str:
    line = [] if metric.line is None else [f"progress line ({metric.line[0]})"]
    places = ", ".join([*line, *metric.places])
    return f"In: {places}." if places else ""


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "commands.md": commands,
    "python-api.md": python_api,
    "metrics.md": metrics,
    "errors.md": errors,
}

if __name__ == "__main__":
    main()
