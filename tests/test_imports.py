"""What the source of the package may import and reach, how long a file is, and what a room says of itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import dagfisher

PACKAGE = Path(dagfisher.__file__).parent
SOURCES = {path.relative_to(PACKAGE.parent).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
TREES = {name: ast.parse(text, name) for name, text in sorted(SOURCES.items())}

PRIVATE_TORCH = "dagfisher/_torch.py"
"""The one file that may reach private names of torch."""
MOST_LINES = 450
NAMED_TUPLE = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
"""Names with an underscore that are public all the same."""
PATH_IN_TORCH = re.compile(r"torch(\.\w+)*\._[a-zA-Z]\w*(\.\w+)*")
"""A private module of torch, in a string."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in NAMED_TUPLE


def names_of_torch() -> set[str]:
    """Private attributes of what torch hands out: tensors, modules, optimizers, its own modules."""
    layer = nn.Conv2d(1, 1, 1)
    given = (torch, nn, nn.functional, layer, layer.weight, torch.optim.SGD(layer.parameters(), lr=1.0))
    return {name for thing in given for name in dir(thing) if is_private(name)}


def names_defined(tree: ast.Module) -> set[str]:
    """Private names that a file gives to its own functions, classes, fields and attributes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def names_inherited(tree: ast.Module, homes: dict[str, ast.Module], seen: frozenset[int] = frozenset()) -> set[str]:
    """Private names that a file defines, or that the files of its classes' base classes do."""
    found, seen = names_defined(tree), seen | {id(tree)}
    for node in ast.walk(tree):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            home = homes.get(ast.unparse(base).split(".")[-1])
            if home is not None and id(home) not in seen:
                found |= names_inherited(home, homes, seen)
    return found


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def roots(node: ast.AST) -> set[str]:
    """The packages that a statement imports; what is imported relatively is dagfisher's."""
    if isinstance(node, ast.ImportFrom):
        return {"dagfisher" if node.level else (node.module or "").split(".")[0]}
    return {alias.name.split(".")[0] for alias in node.names} if isinstance(node, ast.Import) else set()


def imports_of(tree: ast.AST, root: str) -> Iterator[ast.AST]:
    """The statements that import a package or parts of it."""
    return (node for node in ast.walk(tree) if root in roots(node))


def is_own_by_name(node: ast.AST) -> bool:
    """Whether a call imports a module of the package from a string."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    function, first = ast.unparse(node.func).split(".")[-1], node.args[0]
    named = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    return function in ("import_module", "__import__") and bool(re.match(r"\.|dagfisher\b", named))


def hidden_imports(tree: ast.Module) -> Iterator[ast.AST]:
    """Imports of the package that are not there for every reader: in functions, for type checkers, from strings."""
    for node in ast.walk(tree):
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if typing or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports_of(node, "dagfisher")
        elif is_own_by_name(node):
            yield node


def bound_names(tree: ast.Module) -> dict[str, str]:
    """For each name that an import binds, the package that it comes from."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                top = alias.name.split(".")[0]
                found[alias.asname or top] = top if isinstance(node, ast.Import) else next(iter(roots(node)))
    return found


def private_torch(
    tree: ast.Module, elsewhere: set[str], torchs: set[str], homes: dict[str, ast.Module]
) -> Iterator[ast.AST]:
    """Where a file reaches a private name of torch.

    A private name below something imported from torch is torch's. Of any other object, a private attribute is the
    package's if the file defines or inherits it, or another file defines it and torch has no such name; all the rest is
    torch's. `homes` has the file of each class of the package.
    """
    bound, here = bound_names(tree), names_inherited(tree, homes)

    def foreign(name: str) -> bool:
        return is_private(name) and name not in here and (name not in elsewhere or name in torchs)

    for node in imports_of(tree, "torch"):
        assert isinstance(node, ast.Import | ast.ImportFrom)
        paths = [alias.name for alias in node.names]
        paths += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(is_private(part) for path in paths for part in path.split(".")):
            yield node
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root: ast.expr = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            package = bound.get(root.id) if isinstance(root, ast.Name) else None
            if package == "torch" or (package in (None, "dagfisher") and foreign(node.attr)):
                yield node
        elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            name, reads = node.args[1].value, ("getattr", "hasattr", "setattr", "delattr")
            if ast.unparse(node.func) in reads and isinstance(name, str) and foreign(name):
                yield node
        elif isinstance(node, ast.Constant) and PATH_IN_TORCH.fullmatch(str(node.value)):
            yield node


def sentences(text: str) -> int:
    """How many sentences a docstring has, without its examples."""
    prose = " ".join(line for line in text.splitlines() if not line.startswith((" ", ">>>", "...")))
    return len(re.findall(r"(?<!e\.g)(?<!i\.e)(?<!cf)[.!?](?=\s|$)", prose))


def where(name: str, nodes: Iterator[ast.AST]) -> list[str]:
    """The lines of a file that hold the nodes, for a message."""
    lines = sorted({node.lineno for node in nodes if isinstance(node, ast.stmt | ast.expr)})
    return [f"{name}:{line}: {SOURCES[name].splitlines()[line - 1].strip()}" for line in lines]


def test_every_import_of_the_package_is_at_the_top_of_its_file() -> None:
    found = [line for name, tree in TREES.items() for line in where(name, hidden_imports(tree))]
    assert not found, "\n".join(["imported inside a function or for type checkers alone:", *found])


def test_private_names_of_torch_are_reached_in_one_file() -> None:
    torchs, defined = names_of_torch(), {name: names_defined(tree) for name, tree in TREES.items()}
    modules = {part for name in TREES for part in Path(name).with_suffix("").parts}
    elsewhere = modules.union(*defined.values())
    homes = {node.name: tree for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = [
        line
        for name, tree in TREES.items()
        if name != PRIVATE_TORCH
        for line in where(name, private_torch(tree, elsewhere, torchs, homes))
    ]
    assert not found, "\n".join([f"these belong in {PRIVATE_TORCH}, each with a fallback:", *found])


def test_the_garbage_collector_is_left_alone() -> None:
    found = [line for name, tree in TREES.items() for line in where(name, imports_of(tree, "gc"))]
    assert not found, "\n".join(found)


def test_every_room_says_what_it_is_in_two_sentences_or_more() -> None:
    rooms = {name: ast.get_docstring(tree) or "" for name, tree in TREES.items() if name.endswith("__init__.py")}
    assert len(rooms) > 1
    short = [f"{name}: {text!r}" for name, text in rooms.items() if sentences(text) < 2]
    assert not short, "\n".join(short)


def test_no_file_is_long() -> None:
    lengths = {name: len(text.splitlines()) for name, text in SOURCES.items()}
    long = [f"{name}: {lines} lines" for name, lines in sorted(lengths.items()) if lines > MOST_LINES]
    assert not long, "\n".join(long)


@pytest.mark.parametrize(
    ("source", "hidden"),
    [
        ("from .solvers import Dense", False),
        ("import dagfisher.nn", False),
        ("def f():\n    import math", False),
        ("def f():\n    from .solvers import Dense", True),
        ("async def f():\n    from dagfisher import nn", True),
        ("class A:\n    def f(self):\n        import dagfisher.nn", True),
        ("if TYPE_CHECKING:\n    from .solvers import Dense", True),
        ("if typing.TYPE_CHECKING:\n    import dagfisher", True),
        ("if TYPE_CHECKING:\n    from torch import Tensor", False),
        ("def f():\n    import_module('dagfisher.nn')", True),
        ("importlib.import_module('.nn', __package__)", True),
        ("importlib.import_module('tensorboard')", False),
    ],
)
def test_hidden_imports_are_found(source: str, hidden: bool) -> None:
    assert bool(list(hidden_imports(ast.parse(source)))) == hidden


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("import torch._dynamo", True),
        ("from torch._dynamo import disable", True),
        ("from torch import _foreach_add", True),
        ("from torch.nn.modules.conv import _ConvNd", True),
        ("import torch\ntorch._C._current_graph_task_id()", True),
        ("import torch\ntorch._foreach_add_(a, b)", True),
        ("from torch import nn\nisinstance(m, nn.modules.conv._ConvNd)", True),
        ("import torch.nn.functional as F\nF._pad(x)", True),
        ("output._base", True),
        ("f(x)._base", True),
        ("self.module._parameters['weight']", True),
        ("class A(nn.Module):\n    def f(self):\n        return self._parameters", True),
        ("m._reversed_padding_repeated_twice", True),
        ("getattr(m, '_reversed_padding_repeated_twice', None)", True),
        ("'torch._dynamo' in sys.modules", True),
        ("class A:\n    def __init__(self):\n        self._base = 1\n        self._base", False),
        ("class A:\n    _values: int = 0\ndef f(a):\n    return a._values", False),
        ("other._shared", False),
        ("self._shared", False),
        ("other._version", True),
        ("class A(Base):\n    def f(self):\n        return self._parameters()", False),
        ("import torch\ntorch.__version__", False),
        ("row._replace(a=1)._asdict()", False),
        ("import argparse\nargparse._SubParsersAction", False),
        ("from . import _torch\n_torch.graph_task()", False),
        ("import dagfisher\ndagfisher._torch.graph_task()", False),
        ("getattr(options, 'name')", False),
        ("'torch.nn is described in torch._C'", False),
    ],
)
def test_private_names_of_torch_are_found(source: str, private: bool) -> None:
    homes = {"Base": ast.parse("class Base:\n    def _parameters(self): ...")}
    found = private_torch(ast.parse(source), {"_shared", "_version", "_torch"}, names_of_torch(), homes)
    assert bool(list(found)) == private


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("What solvers share", 0),
        ("What solvers share.", 1),
        ("Solvers, e.g. the dense one.", 1),
        ("Solvers of F.\n\nEach says what it costs.", 2),
        ("Solvers of blocks.\n\nEach says what it costs (see `cost`).", 2),
        ("Solvers of blocks.\n\n>>> a.solve(b)\n...   no sentence.\n    nor this.", 1),
    ],
)
def test_sentences_are_counted(text: str, count: int) -> None:
    assert sentences(text) == count
