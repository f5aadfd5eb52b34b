"""Packages import only packages below them in a fixed order; no `utils`, no cycles, no imports inside functions.

Imports inside functions are allowed for optional dependencies (OPTIONAL below), in `cli/`, which loads a command's
module when the command runs, and in the top-level `__init__`, whose public names load lazily. They count as imports
where cycles of files are looked for.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import turnwise
from sources_for_tests import parse_file
from turnwise.engine.engines import ENGINES

ORDER = (
    "cli",
    "studio",
    "run",
    "testing",
    "recipes",
    "viewer",
    "service",
    "gateway",
    "cluster",
    "training",
    "evaluation",
    "report",
    "record",
    "config",
    "data",
    "rollout",
    "envs",
    "rewards",
    "engine",
    "tools",
    "sandbox",
    "algos",
    "render",
    "models",
    "pictures",
    "settings",
    "files",
    "network",
    "user_code",
    "concurrency",
    "text",
    "core",
)
"""All packages, from the top down, as in the design."""

PURE = {"algos": ("settings", "user_code", "text", "core")}
"""Packages of pure functions, and all that they may import."""

OPTIONAL = (
    "huggingface_hub",
    "pandas",
    "PIL",
    "gguf",
    "llguidance",
    "math_verify",
    "peft",
    "torch.utils.tensorboard",
    "minari",
    "pyarrow",
    "pyarrow.ipc",
    "pyarrow.parquet",
    "trackio",
    "wandb",
    "turnwise.engine.paged.kernels",
    "turnwise.engine.native.build",
    "turnwise.engine.vllm.build",
    "turnwise.engine.vllm.installation",
    "turnwise.engine.vllm.in_process",
    "turnwise.models.head_kernel",
    "turnwise.envs.code_tests.submission_tool",
    "turnwise.tools.python",
    "turnwise.envs.tools.tool_factory",
    "turnwise.rewards.factory",
    "turnwise.tools.mcp.source",
    "turnwise.envs.adapters.openenv.connection",
    "turnwise.envs.adapters.verifiers.host.classic",
    "turnwise.envs.adapters.verifiers.host.tasksets",
    "turnwise.envs.adapters.harbor.containers",
    "turnwise.envs.adapters.harbor.episode",
    "turnwise.envs.adapters.harbor.shell_tool",
    "turnwise.envs.gymnasium_env",
    "turnwise.rewards.judge.endpoint",
    "turnwise.rewards.judge.local",
    "turnwise.envs.search_qa.search_tool",
    "turnwise.tools.search.dense",
    "turnwise.tools.search.index",
    "turnwise.tools.search.remote",
    "turnwise.run.clustering",
    "turnwise.run.stored_sources",
    "turnwise.gateway.server",
    "openai",
)
"""Modules that any package may import inside a function.

`kernels` and `head_kernel` stand for Triton, `build` for torch, `in_process` for vLLM, `submission_tool`, `python`,
`containers`, `episode` and `shell_tool` for the sandbox, on Linux alone; `search_tool` and `search.index` mean bm25s,
`dense` for torch and transformers, without which a lexical search starts at once; `source` for the SDK of MCP;
`connection` for websockets; `classic` and `tasksets` for the two generations of verifiers, which exclude each other;
`gymnasium_env` for Gymnasium; `remote` and `endpoint` for an HTTP library, `local` for torch; `clustering` for Ray;
`gateway.server` for a web server; `installation` for packaging; `stored_sources` for numpy; `tool_factory` and
`factory` for all of those together, which a list of environments does not wait for.
"""

PACKAGE = "turnwise"
PUBLIC = (PACKAGE, f"{PACKAGE}.testing")
"""Packages that users import names from: their `__init__` imports those."""


@dataclass(frozen=True)
class Import:
    """Module `importer` imports module `imported`; both are full names."""

    importer: str
    imported: str
    line: int
    in_function: bool

    @property
    def where(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_names(root: Path) -> dict[str, Path]:
    """Return every module in the folder by its full name."""
    names = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        names[".".join((PACKAGE, *(part for part in parts if part != "__init__")))] = path
    return names


BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of statements that contain statements."""


def imports_of(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """Yield the imports of one module, including those under `if` and `try`."""
    queue: list[tuple[ast.AST, bool]] = [(parse_file(path), False)]
    while queue:
        node, inside = queue.pop()
        for imported in imported_names(node, name, path, known):
            yield Import(importer=name, imported=imported, line=getattr(node, "lineno", 0), in_function=inside)
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        blocks = (getattr(node, field, ()) for field in BLOCKS)  # an expression contains no import
        queue += [(child, inside) for block in blocks for child in block]


def imported_names(node: ast.AST, name: str, path: Path, known: dict[str, Path]) -> list[str]:
    """Return the imported modules. `from turnwise.a import b` imports turnwise.a.b if that is a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parents = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
    full = [f"{base}.{alias.name}" for alias in node.names]
    return [module if module in known else base for module in full]


def package_of(module: str) -> str:
    """Return the name of a module's package: cli for turnwise.__main__, empty for turnwise itself."""
    parts = module.split(".")
    if len(parts) < 2:
        return ""
    return "cli" if parts[1] == "__main__" else parts[1]


class Sources(NamedTuple):
    """All modules of a folder by their full names, and their imports."""

    known: dict[str, Path]
    imports: list[Import]


def read_sources(root: Path) -> Sources:
    known = module_names(root)
    return Sources(known, [found for name, path in known.items() for found in imports_of(name, path, known)])


@cache
def turnwise_sources() -> Sources:
    """Read once for all tests: parsing the package takes seconds."""
    return read_sources(Path(turnwise.__file__).parent)


def violations(sources: Sources) -> list[str]:
    """Return every violation of a rule, one line each."""
    known, imports = sources
    packages = {package_of(name) for name in known} - {""}
    return [
        *(f"{package} is not a package of the design" for package in sorted(packages - set(ORDER))),
        *(f"{found.where}: against the order of the packages" for found in imports if goes_up(found)),
        *(f"{found.where} inside a function" for found in imports if hidden(found)),
        *(f"import cycle: {' -> '.join(cycle)}" for cycle in cycles(known, imports)),
        *(f"{name}: a package's __init__ may contain only a docstring" for name in inits_with_code(known)),
    ]


def goes_up(found: Import) -> bool:
    importer, imported = package_of(found.importer), package_of(found.imported)
    if found.imported.split(".")[0] != PACKAGE or importer not in ORDER or importer == imported:
        return False
    if found.imported == PACKAGE:  # its public names are lazy: the version, for one
        return importer != "cli"
    return imported not in PURE.get(importer, ORDER[ORDER.index(importer) + 1 :])


def hidden(found: Import) -> bool:
    optional = found.imported in OPTIONAL or found.imported.split(".")[0] in OPTIONAL
    allowed = package_of(found.importer) in ("", "cli") or optional
    return found.in_function and not allowed


CONCRETE_ENGINES = tuple(f"turnwise.engine.{name}" for name in ("cpu", "native", "paged", "vllm"))
NAMES_AN_ENGINE = {
    "turnwise.config.foreign_names": "what other libraries call the setting of vLLM",
    "turnwise.config.schema": "the default of engine",
    "turnwise.run.configure": "the default of engine",
    "turnwise.rewards.judge.local": "a judge in this process always samples natively",
    "turnwise.run.doctor": "checks that the native engine's kernels compile",
    "turnwise.run.versions": "reports the compiler of the native engine's kernels",
}
"""Modules outside `engine/` that may name a concrete engine, and why. Others use the members of `EngineSettings`."""


def uses_of_concrete_engines(sources: Sources) -> list[str]:
    """Return the modules outside `engine/` that import an engine's code or contain its name, one line each."""
    pairs = {(each.importer, each.imported) for each in sources.imports if each.imported.startswith(CONCRETE_ENGINES)}
    found = [f"{name} imports {imported}" for name, imported in pairs if package_of(name) != "engine"]
    for name, path in sources.known.items():
        if package_of(name) == "engine":
            continue
        if any(engine in path.read_text(encoding="utf-8").lower() for engine in ENGINES):
            found += [f"{name} names {text}" for text in engine_names(parse_file(path))]
    return sorted(found)


def engine_names(tree: ast.Module) -> Iterator[str]:
    """Yield imported classes of engines, and texts outside of docstrings that are a name or contain `engine NAME`."""
    nodes = list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    classes = {engine.__name__ for engine in ENGINES.values()}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "turnwise.engine.engines":
            yield from (alias.name for alias in node.names if alias.name in classes)
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        yield from (name for name in ENGINES if node.value == name or f"engine {name}" in node.value)


def inits_with_code(known: dict[str, Path]) -> list[str]:
    inits = [name for name, path in known.items() if path.name == "__init__.py" and name not in PUBLIC]
    return [name for name in inits if not only_docstring(parse_file(known[name]))]


def only_docstring(tree: ast.Module) -> bool:
    return len(tree.body) == 1 and ast.get_docstring(tree) is not None


def cycles(known: dict[str, Path], imports: list[Import]) -> list[list[str]]:
    """Return the cycles of imports, those inside functions included; each is found once."""
    edges: dict[str, list[str]] = {name: [] for name in known}
    for found in imports:
        if found.importer != PACKAGE and found.imported in known and found.imported != found.importer:
            edges[found.importer].append(found.imported)
    done: set[str] = set()
    found_cycles = []

    def visit(name: str, way: list[str]) -> None:
        if name in way:
            found_cycles.append([*way[way.index(name) :], name])
        elif name not in done:
            for target in edges[name]:
                visit(target, [*way, name])
            done.add(name)

    for name in known:
        visit(name, [])
    return found_cycles


def test_turnwise_has_no_import_violations() -> None:
    assert violations(turnwise_sources()) == []


def test_nothing_above_the_engines_names_a_concrete_one() -> None:
    found = uses_of_concrete_engines(turnwise_sources())
    assert {line.split()[0] for line in found} == set(NAMES_AN_ENGINE), found


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("from turnwise.engine.paged.runner import COUNTS\n", "imports turnwise.engine.paged.runner"),
        ("import turnwise.engine.native.engine\n", "imports turnwise.engine.native.engine"),
        ("def f(config):\n    return config.engine.kind == 'native'\n", "names native"),
        ("from turnwise.engine.engines import ENGINES, Native\n", "names Native"),
        ("def f():\n    raise ValueError(f'Set engine vllm, {1}.')\n", "names vllm"),
    ],
)
def test_uses_of_concrete_engines_finds_each_kind(tmp_path: Path, code: str, use: str) -> None:
    assert write_and_check(tmp_path, training__loop=code, engine__native="NAME = 'native'\n") == []
    assert uses_of_concrete_engines(read_sources(tmp_path)) == [f"turnwise.training.loop {use}"]
    assert write_and_check(tmp_path, training__loop='"""Runs with engine vllm."""\n') == []
    assert uses_of_concrete_engines(read_sources(tmp_path)) == []


def test_imports_of_finds_imports_of_turnwise() -> None:
    known, imports = turnwise_sources()
    assert "turnwise.config.schema" in known
    assert "turnwise.config.schema" in {each.imported for each in imports if each.importer == "turnwise.config.load"}


def write_and_check(root: Path, **files: str) -> list[str]:
    """Write modules and return their violations: `core__suggestions="..."` is core/suggestions.py."""
    for name, text in {"__init__": "", **files}.items():
        path = root / f"{name.replace('__', '/') if name != '__init__' else name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.parent != root and not (path.parent / "__init__.py").exists():
            (path.parent / "__init__.py").write_text('"""A package."""\n')
    return violations(read_sources(root))


def test_violations_is_empty_for_valid_imports(tmp_path: Path) -> None:
    assert (
        write_and_check(
            tmp_path,
            core__suggestions="import json\n",
            config__schema="from turnwise.core.suggestions import suggest\nfrom turnwise.core import suggestions\n",
            cli__main="def run():\n    from turnwise.config import schema\n",
            models__loading="def read():\n    import gguf\n",
            algos__losses="import torch\nfrom turnwise.core.suggestions import suggest\n",
        )
        == []
    )


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (
            {"core__suggestions": "from turnwise.config.schema import Config\n", "config__schema": ""},
            "turnwise.core.suggestions:1 imports turnwise.config.schema: against the order of the packages",
        ),
        (
            {"config__keys": "import turnwise.cli.main\n", "cli__main": ""},
            "turnwise.config.keys:1 imports turnwise.cli.main: against the order of the packages",
        ),
        (
            {"config__keys": "from ..cli import main\n", "cli__main": ""},
            "turnwise.config.keys:1 imports turnwise.cli.main: against the order of the packages",
        ),
        (
            {"core__suggestions": "if True:\n    from turnwise.config import schema\n", "config__schema": ""},
            "turnwise.core.suggestions:2 imports turnwise.config.schema: against the order of the packages",
        ),
        (
            {"config__keys": "import turnwise\n"},
            "turnwise.config.keys:1 imports turnwise: against the order of the packages",
        ),
        (
            {"algos__losses": "from turnwise.config.schema import Config\n", "config__schema": ""},
            "turnwise.algos.losses:1 imports turnwise.config.schema: against the order of the packages",
        ),
        (
            {"core__suggestions": "def f():\n    import json\n"},
            "turnwise.core.suggestions:2 imports json inside a function",
        ),
        (
            {"core__suggestions": "class A:\n    async def f(self):\n        from json import loads\n"},
            "turnwise.core.suggestions:3 imports json inside a function",
        ),
        (
            {"core__a": "from turnwise.core import b\n", "core__b": "import turnwise.core.a\n"},
            "import cycle: turnwise.core.a -> turnwise.core.b -> turnwise.core.a",
        ),
        (
            {
                "core__a": "from turnwise.core.b import x\n",
                "core__b": "import turnwise.core.c\n",
                "core__c": "import turnwise.core.a\n",
            },
            "import cycle: turnwise.core.a -> turnwise.core.b -> turnwise.core.c -> turnwise.core.a",
        ),
        (
            {
                "engine__engines": "def f():\n    import turnwise.engine.native.build\n",
                "engine__native__build": "import turnwise.engine.engines\n",
                "engine__native__x": "",
            },
            "import cycle: turnwise.engine.engines -> turnwise.engine.native.build -> turnwise.engine.engines",
        ),
        ({"utils__strings": ""}, "utils is not a package of the design"),
        ({"helpers": ""}, "helpers is not a package of the design"),
    ],
)
def test_violations_finds_each_kind(tmp_path: Path, files: dict[str, str], line: str) -> None:
    assert write_and_check(tmp_path, **files) == [line]


def test_violations_finds_code_in_an_init(tmp_path: Path) -> None:
    assert write_and_check(tmp_path, core__suggestions="") == []
    (tmp_path / "core" / "__init__.py").write_text('"""A package."""\n\nfrom turnwise.core.suggestions import *\n')
    assert violations(read_sources(tmp_path)) == ["turnwise.core: a package's __init__ may contain only a docstring"]
