"""Modules that are never called, because the module around them uses their weight itself.

`nn.MultiheadAttention` does so with its `out_proj`: no forward hook of that ever runs, and to declare it would be vain.
What a type does is read from its source; where that cannot be had, or says nothing for certain, nobody is bypassed.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import weakref

from torch import nn

_OWN = ("weight", "bias")
_DYNAMIC = ("children", "named_children", "modules", "named_modules", "get_submodule", "_modules", "__dict__")
"""Ways to reach a child that do not name it."""
_FACTS = ("device", "dtype", "shape", "size", "numel", "requires_grad", "data", "grad")
"""What may be asked of a weight without using it."""
_known: weakref.WeakKeyDictionary[type[nn.Module], frozenset[str]] = weakref.WeakKeyDictionary()


def bypassed(model: nn.Module) -> dict[str, str]:
    """The qualified name of every bypassed module, with the type of the module that uses its weight."""
    found = {}
    for name, parent in model.named_modules():
        if any(isinstance(getattr(child, "weight", None), nn.Parameter) for child in parent.children()):
            kind = type(parent)
            if kind not in _known:
                _known[kind] = _only_by_weight(kind)
            for child in _known[kind] & dict(parent.named_children()).keys():
                found[f"{name}.{child}" if name else child] = type(parent).__name__
    return found


def _only_by_weight(kind: type[nn.Module]) -> frozenset[str]:
    """The attributes whose weight the methods of this type hand on, and that they use in no other way."""
    weights: set[str] = set()
    others: set[str] = set()
    for part in kind.__mro__:
        if part in (nn.Module, object):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
        except (OSError, TypeError, SyntaxError):
            return frozenset()
        for method in ast.walk(tree):
            if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                fills = method.name == "__init__" or "init" in method.name or "reset" in method.name
                if not fills and any(_is_self(node, _DYNAMIC) for node in ast.walk(method)):
                    return frozenset()
                _collect(method, set() if fills else weights, others)
    return frozenset(weights - others)


def _collect(method: ast.AST, weights: set[str], others: set[str]) -> None:
    """Note each attribute of self by how the method uses it."""
    seen: set[int] = set()
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and node.attr in _FACTS:
            seen.add(id(node.value))  # self.child.weight.device hands nothing on
        elif isinstance(node, ast.Attribute) and node.attr in _OWN and _is_self(node.value):
            assert isinstance(node.value, ast.Attribute)
            if node.attr == "weight" and isinstance(node.ctx, ast.Load) and id(node) not in seen:
                weights.add(node.value.attr)
            seen.add(id(node.value))
        elif _is_self(node) and id(node) not in seen:
            assert isinstance(node, ast.Attribute)
            if isinstance(node.ctx, ast.Load):
                others.add(node.attr)


def _is_self(node: ast.AST, names: tuple[str, ...] | None = None) -> bool:
    """Whether this is an attribute of self, and one of these."""
    mine = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return mine and (names is None or (isinstance(node, ast.Attribute) and node.attr in names))
