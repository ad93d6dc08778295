"""Users' own programs: what a function `file.py:name` returns, and what that text refers to. No JAX here.

    def program(batch: int, seq: int) -> jaxplan.Program:
        ...
        return jaxplan.Program(loss, params, batch)

The program is imported in worker processes only; here its text is read, for its hash and for its defaults.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxplan.errors import InputError

DECODER = "decoder"         # the reference of a workload that is the reference decoder, not a user's program
AS_WRITTEN = "as-written"   # what the program itself decides: dtypes, attention, rematerialization


@dataclass(frozen=True, eq=False)
class Program:
    """A model and its loss as its author writes them, without a word about sharding.

    Attributes:
        loss: (params, batch) to a scalar that is differentiable in params: a mean over the batch, so that the mean
            over microbatches is the same.
        params: pytree of floating-point arrays or `jax.ShapeDtypeStruct`; Flax's boxes and variables may name dims.
        batch: pytree of arrays or `jax.ShapeDtypeStruct`; the leading dim of each is the batch. Scalars and typed
            PRNG keys are the same for every device and microbatch.
        parameter_dims: pytree like `params` whose leaves are tuples of dim names, None where unknown. They win over
            Flax's; the rest is named by what the program does.
        batch_dims: the same for `batch`; an array without a dim `batch` is whole everywhere.
    """

    loss: Callable[[Any, Any], Any]
    params: Any
    batch: Any
    parameter_dims: Any = None
    batch_dims: Any = None


@dataclass(frozen=True)
class Reference:
    """`file.py:name`: a function of a Python file, (batch, seq) to a `Program`."""

    file: Path
    name: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """The reference that a text means, its file absolute.

        Raises:
            InputError: no name, no such file, or a file without that name.
        """
        file, colon, name = text.rpartition(":")
        path = Path(file if colon else text).expanduser().resolve()
        if not path.is_file():
            raise InputError(f"--workload {text}: there is no file {path}", "file.py:name", _nearby(path))
        found = cls(path, name)
        functions = found.functions()
        if not colon or not name.isidentifier():
            raise InputError(f"--workload {text} names no function", "file.py:name", _offer(path, functions))
        if found._tree is not None and not found._may_have(name):
            near = difflib.get_close_matches(name, functions) or functions
            raise InputError(f"{path} has no {name}", "a function (batch, seq) in it", _offer(path, near))
        return found

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"

    @cached_property
    def _tree(self) -> ast.Module | None:
        return _parsed(self.file)

    def functions(self) -> list[str]:
        """The functions that the file defines, by its text."""
        body = self._tree.body if self._tree is not None else []
        return [node.name for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]

    def _may_have(self, name: str) -> bool:
        """Whether the file may bind the name; what only running it could tell counts as yes."""
        for node in ast.walk(self._tree or ast.Module([], [])):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                return True
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in (name, "__getattr__"):
                return True
            if isinstance(node, ast.alias) and (node.asname or node.name) in (name, "*"):
                return True
        return self._tree is None

    def default_seq(self, otherwise: int) -> int:
        """The tokens of a sequence where nobody gives them: the function's own default, 1 where it takes no `seq`."""
        body = self._tree.body if self._tree is not None else []
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name == self.name and node.args.vararg is None:
                arguments = [*node.args.posonlyargs, *node.args.args]
                if len(arguments) < 2:
                    return 1
                given = [None] * (len(arguments) - len(node.args.defaults)) + node.args.defaults
                return _positive(given[1], otherwise)
        return otherwise

    def sources(self) -> list[Path]:
        """The file, and the files beside it that it imports, as far as their text tells."""
        found, pending = [], [self.file]
        while pending:
            file = pending.pop()
            if file not in found:
                found.append(file)
                pending += _imported(file, self.file.parent)
        return sorted(found)

    def digest(self) -> str:
        """Hash of the sources: it changes with every edit."""
        text = hashlib.sha256()
        for file in self.sources():
            content = _read(file)
            text.update(f"{file.relative_to(self.file.parent)} {len(content)}\n".encode())
            text.update(content)
        return text.hexdigest()[:16]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}", "a Python file") from error


def _parsed(file: Path) -> ast.Module | None:
    """The syntax tree of a file; None where it is not valid Python: running it will say why."""
    try:
        return ast.parse(_read(file))
    except (SyntaxError, ValueError):
        return None


def _positive(node: ast.expr | None, otherwise: int) -> int:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int) and value > 0 else otherwise


def _nearby(path: Path) -> str:
    names = sorted(file.name for file in path.parent.glob("*.py")) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, 1)
    return f"--workload {path.with_name(near[0])}:NAME" if near else ""


def _offer(path: Path, functions: Sequence[str]) -> str:
    return " or ".join(f"--workload {path.name}:{name}" for name in functions[:3])


def _imported(file: Path, root: Path) -> Iterator[Path]:
    """The files below `root` that a file's import statements lead to."""
    tree = _parsed(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(root, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else root
            if base.is_relative_to(root):
                for alias in node.names:
                    yield from _files(base, f"{node.module or ''}.{alias.name}".lstrip("."))


def _files(base: Path, module: str) -> Iterator[Path]:
    """The files that importing `a.b.c` runs, where they lie below `base`."""
    place = base
    for part in module.split("."):
        place = place / part
        candidates = (place.with_name(f"{part}.py"), place / "__init__.py")
        yield from (file for file in candidates if file.is_file())
