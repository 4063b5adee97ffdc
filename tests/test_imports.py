"""Imports go one way, siblings never meet, and files stay short enough to be read: checked on the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "outpace"

# Bottom first. A folder may import itself and what is below; folders on one line never import each other.
LAYERS = (
    ("errors", "version", "wording"),
    ("checks", "schema_keywords", "fingerprint", "parent", "streams"),
    ("grammar",),
    ("config",),
    ("types", "loops"),
    ("kernels", "distributed"),
    ("models",),
    ("speculation",),
    ("engine",),
    ("server", "training", "lab"),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# The same within the two folders that hold many.
LAB = (
    ("written",),
    ("intervals", "limits", "shapes", "logs", "anatomy", "workload", "breakeven", "wirings"),
    ("timing",),
    ("bench", "profile"),
    ("demo", "paired"),
    ("doctor", "nccl_sweep"),
    ("experiments", "report"),
)
SERVER = (
    ("wire", "looking"),
    ("engine_client", "engine_process"),
    ("settings", "text", "monitoring", "awake"),
    ("http",),
    ("asking",),
    ("answering",),
    ("api",),
    ("assembly",),
    ("run", "replica"),
)
"""Two processes: the engine's has the wire alone of the server."""
PARTS = {
    folder: {name: level for level, names in enumerate(layers) for name in names}
    for folder, layers in {"lab": LAB, "server": SERVER}.items()
}

PUBLIC_API = "__init__"
"""`from outpace import LLM` stands for the engine's public side, and only what lies above the engine may say it."""

OPTIONAL = ("transformers", "triton", "wandb", "outpace.kernels.gpu")
"""What may be missing, and what needs it: the only modules that may be imported inside a function."""

MAX_LINES = 400

FILES = sorted(PACKAGE.rglob("*.py"))


def area(path: Path) -> str:
    """The folder directly under the package that a file lies in, or its own name at the top."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(node: ast.AST) -> list[str]:
    """Full names that one statement imports; relative imports are banned by ruff."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def runtime_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        for name in imported(node):
            yield node.lineno, name  # type: ignore[attr-defined]


def outpace_area(name: str) -> str | None:
    """Which area an imported name belongs to; None if it is not ours."""
    parts = name.split(".")
    if parts[0] != "outpace":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL else PUBLIC_API


def allowed(importer: str, target: str) -> bool:
    if importer == PUBLIC_API:
        return True
    level = LEVEL[importer]
    if target == PUBLIC_API:
        return level > LEVEL["engine"]
    return importer == target or level > LEVEL[target]


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.fixture(params=FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def path(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.param
    return chosen


def test_every_folder_has_a_place(path: Path) -> None:
    assert area(path) in LEVEL or area(path) == PUBLIC_API, f"{area(path)} is missing from LAYERS"


def test_imports_go_one_way(path: Path) -> None:
    wrong = [
        f"line {line}: {area(path)} may not import {name}"
        for line, name in runtime_imports(ast.parse(path.read_text(encoding="utf-8")))
        if (target := outpace_area(name)) is not None and not allowed(area(path), target)
    ]
    assert not wrong, wrong


def part(path: str) -> tuple[str, str] | None:
    """The folder of `PARTS` and its part that a file or a module name lies in; None elsewhere, and for a docstring."""
    names = path.removesuffix(".py").replace("/", ".").split(".")
    return (names[0], names[1]) if names[0] in PARTS and len(names) > 1 and names[1] != "__init__" else None


def builds_on(importer: tuple[str, str], target: tuple[str, str]) -> bool:
    """Whether a part may import another one of its folder."""
    levels = PARTS[importer[0]]
    return importer == target or levels[importer[1]] > levels[target[1]]


def test_parts_of_a_folder_build_on_each_other_one_way(path: Path) -> None:
    own = part(str(path.relative_to(PACKAGE)))
    if own is None:
        return
    assert own[1] in PARTS[own[0]], f"{'/'.join(own)} is missing from {own[0].upper()}"
    wrong = [
        f"line {line}: {'/'.join(own)} may not import {name}"
        for line, name in runtime_imports(ast.parse(path.read_text(encoding="utf-8")))
        if (other := part(name.removeprefix("outpace."))) is not None
        and other[0] == own[0]
        and not builds_on(own, other)
    ]
    assert not wrong, wrong


def test_no_modules_import_each_other() -> None:
    """Not even within functions, nor over a third."""
    names = {module_name(path): path for path in FILES}
    order = TopologicalSorter(
        {
            name: {
                module
                for _, full in runtime_imports(ast.parse(path.read_text(encoding="utf-8")))
                if (module := full if full in names else full.rpartition(".")[0]) in names and module != PACKAGE.name
            }
            for name, path in names.items()
        }
    )
    order.prepare()


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_functions_import_only_what_may_be_missing(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = [
        f"line {node.lineno}: {name}"  # type: ignore[attr-defined]
        for function in functions(tree)
        for node in ast.walk(function)
        for name in imported(node)
        if not f"{name}.".startswith(tuple(f"{optional}." for optional in OPTIONAL))
    ]
    assert not hidden, hidden


def test_a_file_is_read_in_one_sitting(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_LINES
    assert ast.get_docstring(ast.parse(text)), "a module opens with why it exists"


@pytest.mark.parametrize(
    ("importer", "target", "verdict"),
    [
        ("cli", "lab", True),
        ("engine", "models", True),
        ("models", "engine", False),
        ("training", "lab", False),
        ("lab", "training", False),
        ("kernels", "distributed", False),
        ("lab", PUBLIC_API, True),
        ("speculation", PUBLIC_API, False),
        ("errors", "config", False),
    ],
)
def test_the_rule_itself(importer: str, target: str, verdict: bool) -> None:
    assert allowed(importer, target) is verdict


@pytest.mark.parametrize(
    ("folder", "importer", "target", "verdict"),
    [
        ("lab", "doctor", "timing", True),
        ("lab", "bench", "profile", False),
        ("server", "api", "asking", True),
        ("server", "http", "asking", False),
        ("server", "engine_client", "engine_process", False),
        ("server", "engine_process", "wire", True),
    ],
)
def test_the_rule_of_parts(folder: str, importer: str, target: str, verdict: bool) -> None:
    assert builds_on((folder, importer), (folder, target)) is verdict


def test_parts_are_told_from_paths_and_names() -> None:
    assert part("server/http/guard.py") == part("server.http.guard.Guard") == ("server", "http")
    assert part("server/run.py") == part("server.run.serve") == ("server", "run")
    assert part("server/__init__.py") is part("engine/llm.py") is part("server") is None
