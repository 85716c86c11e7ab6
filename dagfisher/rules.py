"""Whole models, declared from a few rules."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from .declaration import name_layers
from .declare import declare, declare_gaussian
from .errors import DeclarationError
from .summary import summary

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
    name_layers(model)
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
