"""The architecture as tests: imports go down only, pure layers never import JAX, modules stay readable."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "jaxplan"
MODULES = sorted(PACKAGE.rglob("*.py"))
PURE_WORKLOAD = ("shape", "table", "parameters", "hf", "user", "precision")
LAYERS = (
    {"errors", "units"},
    {"machine", *(f"workload.{name}" for name in PURE_WORKLOAD)},
    {"plan"},
    {"workload.cut"},       # reads a table under a plan's rematerialization policy
    {"estimate"},
    {"search"},
    {"validate"},
    {"workload"},
    {"compile"},
    {"checkpoint"},
    {"run"},
    {"profile", "goodput"},
    {"export", "report"},
    {"cli"},
)
NO_JAX = {
    "errors",
    "units",
    "machine",
    "plan",
    "estimate",
    "search",
    "validate",
    "goodput",
    "workload.cut",
    *(f"workload.{name}" for name in PURE_WORKLOAD),
}
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}
MOST_LINES = 350


def name_of(path: Path) -> str:
    """`plan.files` of `jaxplan/plan/files.py`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """The unit that has a layer: a package, or a module where one package spans two layers."""
    units = set().union(*LAYERS)
    head = ".".join(module.split(".")[:2])
    return head if head in units else module.split(".")[0]


def rank_of(unit: str) -> int:
    return next(rank for rank, units in enumerate(LAYERS) if unit in units)


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere in a syntax tree, in full."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported: none in functions, none for type checkers."""
    pending = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        pending += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 50
    assert unit_of("workload.shape") == "workload.shape"
    assert unit_of("workload.decoder") == "workload"
    assert rank_of("workload.shape") < rank_of("plan") < rank_of("workload") < rank_of("cli")
    lazy = ast.parse(
        "import numpy\ndef f():\n  import jax\nclass A:\n  import flax\nif TYPE_CHECKING:\n  import optax"
    )
    assert sorted(name for node in at_import(lazy) for name in imports(node)) == ["flax", "numpy"]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_down(path: Path) -> None:
    module = name_of(path)
    if module in ("", "__main__"):
        return  # the package itself and its entry point stand above everything
    own = unit_of(module)
    for target in imports(ast.parse(path.read_text())):
        if target.split(".")[0] != "jaxplan" or target == "jaxplan.__version__":
            continue
        other = unit_of(target.removeprefix("jaxplan."))
        lower, same = rank_of(other) < rank_of(own), other == own
        beside = rank_of(other) == rank_of(own) == 1  # machines and shapes are one layer
        assert lower or same or beside, f"{module} imports {target}, which lies above or beside it"


@pytest.mark.parametrize("path", [p for p in MODULES if unit_of(name_of(p)) in NO_JAX], ids=name_of)
def test_pure_layers_do_not_import_jax(path: Path) -> None:
    for node in at_import(ast.parse(path.read_text())):
        for target in imports(node):
            assert target.split(".")[0] not in JAX, f"{name_of(path)} imports {target}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_stay_readable(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MOST_LINES
    assert not {"TODO", "FIXME", "XXX"} & set(text.split()), "say what is missing, or do it"
    if text:
        assert ast.get_docstring(ast.parse(text)), "a module says what it owns"


# what users run before any program is traced, imported for real: a pure module can reach JAX through another
@pytest.mark.parametrize(
    "code",
    [
        "import jaxplan; jaxplan.load; jaxplan.Plan; jaxplan.PlanRecord",
        "import jaxplan.plan.files, jaxplan.plan.use",
        "import jaxplan.checkpoint.watchdog, jaxplan.checkpoint.position; jaxplan.checkpoint.Preemption",
        "import jaxplan.estimate.step, jaxplan.search.progress, jaxplan.search.space",
        "from jaxplan.cli.main import main; sys.argv[1:] = ['--help']; exit_code(main)",
        "from jaxplan.cli.main import main; sys.argv[1:] = ['catalog', 'chips', 'h100']; exit_code(main)",
        "from jaxplan.cli.main import main; sys.argv[1:] = ['validate', '--json']; exit_code(main)",
        "import jaxplan.goodput.assessment, jaxplan.goodput.published, jaxplan.report.goodput_text",
    ],
)
def test_no_jax_is_imported(code: str) -> None:
    script = (
        "import sys\n"
        "def exit_code(main):\n"
        "    try: main()\n"
        "    except SystemExit as done: assert not done.code, done.code\n"
        f"{code}\n"
        f"found = sorted(set(sys.modules) & {JAX!r})\n"
        "assert not found, found\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent, timeout=60
    )
    assert done.returncode == 0, done.stderr
