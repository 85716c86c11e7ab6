"""Whole models: declared from a few rules, and shown as a table of what is declared as what."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import nn

from ._text import table
from .declare import Declaration, declaration_of, declare, declare_gaussian
from .errors import DeclarationError

if TYPE_CHECKING:
    from .optim import DAGNaturalGradient

Rule = str | Mapping[str, Any] | None
_HEADS = ("log_std", "log_var")


def declare_model(model: nn.Module, rules: Mapping[str | type[nn.Module], Rule]) -> nn.Module:
    """Declare the modules of a model by their names or types, print a table of the result, and return the model.

    Args:
        model: any module.
        rules: from a name (``"decoder.out"``, or a pattern like ``"encoder.*"``) or a type (``nn.Linear``) to what such
            a module is: a family (``"bernoulli"``); a family with settings (``{"family": "gaussian", "std": 1.0}``);
            one of two heads, the mean, naming the other (``{"family": "gaussian", "log_var": "encoder.log_var"}``); or
            None, which leaves it undeclared. For each module the first rule that fits counts, names before types.

    Every rule must fit some module.
    """
    modules = {name: module for name, module in model.named_modules() if any(True for _ in module.parameters(False))}
    ordered = sorted(rules, key=lambda key: not isinstance(key, str))
    chosen: dict[str, Mapping[str, Any]] = {}
    for key in reversed(ordered):
        fitting = [name for name, module in modules.items() if _fits(key, name, module)]
        if not fitting:
            shown = key if isinstance(key, str) else key.__name__
            raise DeclarationError(f"no module fits the rule {shown!r}; there are {', '.join(modules) or 'none'}.")
        rule = rules[key]
        chosen.update(dict.fromkeys(fitting, {"family": rule} if rule is None or isinstance(rule, str) else rule))
    _apply(modules, {name: rule for name, rule in chosen.items() if rule.get("family") is not None})
    print(summary(model))
    return model


def _fits(key: str | type[nn.Module], name: str, module: nn.Module) -> bool:
    return fnmatchcase(name, key) if isinstance(key, str) else isinstance(module, key)


def _apply(modules: dict[str, nn.Module], chosen: dict[str, Mapping[str, Any]]) -> None:
    heads = {}
    for name, rule in chosen.items():
        for kind in _HEADS:
            if kind in rule:
                if rule[kind] not in modules:
                    raise DeclarationError(f"the rule for {name!r} names {rule[kind]!r}, which is not in the model.")
                heads[name] = (kind, rule[kind])
    scales = {other for _, other in heads.values()}
    for name, rule in chosen.items():
        if name in heads:
            kind, other = heads[name]
            scale: dict[str, Any] = {kind: modules[other]}
            declare_gaussian(mean=modules[name], **scale)
        elif name not in scales:
            declare(modules[name], **rule)


def summary(model: nn.Module, optimizer: DAGNaturalGradient | None = None) -> str:
    """A table of the model's layers: what each is declared as, and the size of its Fisher blocks.

    With the optimizer, also the solver of each layer and the bytes it keeps, once it has taken a step.
    """
    header = ["layer", "map", "family", "units", "parents", "parameters", "block", "solver", "bytes"]
    lines = []
    for name, module in model.named_modules():
        own = sum(p.numel() for p in module.parameters(recurse=False))
        if not own:
            continue
        declaration = declaration_of(module)
        if declaration is None:
            lines.append([name, type(module).__name__, "not declared", "", "", f"{own:,}", "", "", ""])
        else:
            lines.append([name, *_described(module, declaration, own), *_prepared(declaration, optimizer)])
    return table(header, lines, left=3)


def _described(module: nn.Module, declaration: Declaration, own: int) -> list[str]:
    weight, bias = declaration.map.parameters(module)
    units = declaration.map.units(module)
    parents = 0 if weight is None else weight.numel() // units
    block = parents + (bias is not None)
    family: Any = declaration.family
    return [type(module).__name__, family.name, f"{units:,}", f"{parents:,}", f"{own:,}", f"{block}×{block}"]


def _prepared(declaration: Declaration, optimizer: DAGNaturalGradient | None) -> list[str]:
    if optimizer is None:
        return ["", ""]
    for layer in optimizer._layers:
        if layer.declaration is declaration:
            return [layer.solver or "not yet", f"{layer.nbytes():,}"]
    return ["not trained", ""]
