"""Whole models, declared from a few rules."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from .bypass import bypassed
from .declaration import declaration_of, name_layers
from .declare import declare, declare_gaussian, undeclare
from .errors import DeclarationError
from .families import Units, family_settings
from .summary import summary

Key = str | type[nn.Module]
Rule = str | Units | Mapping[str, Any] | None
_HEADS = ("log_std", "log_var")


def declare_model(model: nn.Module, rules: Mapping[Key, Rule]) -> nn.Module:
    """Declare the modules of a model by their names or types, print a table of the result, and return the model.

    Every rule must fit some module.

    Args:
        model: any module.
        rules: from a name (``"decoder.out"``, or a pattern like ``"encoder.*"``) or a type (``nn.Linear``) to what such
            a module is: a family (``"bernoulli"``); a family with settings (``{"family": "gaussian", "std": 1.0}``);
            one of two heads, the mean, naming the other (``{"family": "gaussian", "log_var": "encoder.log_var"}``); or
            None, which leaves it undeclared. For each module the first rule that fits counts, names before types.

    Every rule must fit some module. A module that is never called, because the one around it uses its weight itself (as
    ``nn.MultiheadAttention`` does with its ``out_proj``), is left undeclared, and the table says so. If anything is
    wrong, the model stays as it was.
    """
    if not isinstance(model, nn.Module):
        raise DeclarationError(f"declare_model needs a model, an nn.Module, not a {type(model).__name__}.")
    modules = {name: module for name, module in model.named_modules() if any(True for _ in module.parameters(False))}
    settings = {key: _settings(key, rule) for key, rule in rules.items()}
    chosen = _chosen(model, modules, settings)
    with _whole_or_not_at_all(model):
        name_layers(model)  # those that are declared already
        _apply(modules, {name: rule for name, rule in chosen.items() if rule["family"] is not None}, settings)
        name_layers(model)
        print(summary(model))
    return model


@contextmanager
def _whole_or_not_at_all(model: nn.Module) -> Iterator[None]:
    """What is declared inside this context is taken back if it ends with an error."""
    before = {module: declaration_of(module) for module in model.modules()}
    kept = [(declaration, dict(vars(declaration))) for declaration in before.values() if declaration is not None]
    try:
        yield
    except BaseException:
        for module, declaration in before.items():
            if declaration is None and declaration_of(module) is not None:
                undeclare(module)
        for declaration, state in kept:
            vars(declaration).clear()
            vars(declaration).update(state)
        raise


def _settings(key: Key, rule: Rule) -> dict[str, Any]:
    """The rule as a dict with a family; refused if it is none, or has a key that means nothing."""
    if not isinstance(key, str) and not (isinstance(key, type) and issubclass(key, nn.Module)):
        raise DeclarationError(f"a rule is for a name, a pattern or a type of modules, not for {key!r}.")
    if rule is None or isinstance(rule, (str, Units)):
        return {"family": rule}
    if not isinstance(rule, Mapping):
        raise DeclarationError(f"the rule {_shown(key)} must be a family, a dict with a family, or None, not {rule!r}.")
    family = rule.get("family", "")
    if "family" not in rule or not (family is None or isinstance(family, (str, Units))):
        near = difflib.get_close_matches("family", [str(name) for name in rule if name != "family"], 1)
        hint = f"did you mean it by {near[0]!r}?" if near else "None leaves the module undeclared."
        raise DeclarationError(f"the rule {_shown(key)} needs a 'family'; {hint}")
    known = _known(rule)
    for name in rule:
        if known is not None and name not in known:
            raise DeclarationError(f"the rule {_shown(key)} has no setting {name!r}; {_meant(str(name), known)}")
    heads = [kind for kind in _HEADS if kind in rule]
    if heads and (family != "gaussian" or len(heads) > 1 or "std" in rule):
        raise DeclarationError(
            f"the rule {_shown(key)} must have the family 'gaussian' with exactly one of 'log_std', 'log_var', 'std'."
        )
    return dict(rule)


def _known(rule: Mapping[str, Any]) -> list[str] | None:
    """The keys that a rule may have; None if the family takes whatever it is given."""
    if any(kind in rule for kind in _HEADS):
        return ["family", *(name for name in _keywords(declare_gaussian) if name != "mean")]
    family = rule.get("family")
    own = family_settings(family) if isinstance(family, (str, Units)) else []
    heads = _HEADS if family == "gaussian" else ()
    return None if own is None else ["family", *own, *_keywords(declare), *heads]


def _keywords(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def _chosen(
    model: nn.Module, modules: dict[str, nn.Module], rules: Mapping[Key, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The rule of each module that has one."""
    names_first = sorted(rules, key=lambda key: not isinstance(key, str))
    idle = bypassed(model)
    chosen: dict[str, dict[str, Any]] = {}
    for key in reversed(names_first):
        fitting = [name for name, module in modules.items() if _fits(key, name, module)]
        if not fitting:
            raise _fits_nothing(model, modules, key)
        if rules[key]["family"] is not None:
            skipped = [name for name in fitting if name in idle]
            fitting = [name for name in fitting if name not in idle]
            if not fitting:
                raise DeclarationError(
                    f"the rule {_shown(key)} fits only {_listed(skipped)}, which {idle[skipped[0]]} never calls: it "
                    f"uses the weight itself. Leave it out; dagfisher.declare takes a module that is called elsewhere."
                )
        chosen.update(dict.fromkeys(fitting, rules[key]))
    return chosen


def _fits(key: Key, name: str, module: nn.Module) -> bool:
    return fnmatchcase(name, key) if isinstance(key, str) else isinstance(module, key)


def _fits_nothing(model: nn.Module, modules: dict[str, nn.Module], key: Key) -> DeclarationError:
    """What to raise where no module with parameters of its own fits."""
    containers = [name for name, module in model.named_modules() if name and _fits(key, name, module)]
    if key in dict(model.named_parameters()):
        return DeclarationError(f"{_shown(key)} is a parameter, not a module; declare it with declare_parameter.")
    if not containers:
        names = [name for name in modules if name]
        listed = f"there are {_listed(names)}" if names else "no module inside this one has parameters"
        near = _near(key, names) if isinstance(key, str) else ""
        return DeclarationError(f"no module fits the rule {_shown(key)}; {listed}{f'; {near}' if near else '.'}")
    inside = [name for name in modules if name.startswith(f"{containers[0]}.")]
    remedy = f"Write {containers[0] + '.*'!r} for the modules inside, or name one of {_listed(inside)}."
    return DeclarationError(
        f"the rule {_shown(key)} fits only {_listed(containers)}, which has no parameters of its own. "
        f"{remedy if inside else 'There are none inside either.'}"
    )


def _apply(
    modules: dict[str, nn.Module], chosen: dict[str, dict[str, Any]], rules: Mapping[Key, dict[str, Any]]
) -> None:
    """Declare each of these modules by its rule."""
    heads = {name: next(kind for kind in _HEADS if kind in rule) for name, rule in chosen.items() if _has_head(rule)}
    for name, kind in heads.items():
        other = chosen[name][kind]
        if other not in modules:
            raise DeclarationError(
                f"the rule for {name!r} names {other!r}, which is not in the model; {_meant(str(other), modules)}"
            )
        if other != name and rules.get(other, {"family": None})["family"] is not None:
            raise DeclarationError(f"the rule for {name!r} names {other!r}, which has a rule of its own; remove one.")
    scales = {chosen[name][kind] for name, kind in heads.items()}
    for name, rule in chosen.items():
        try:
            if name in heads:
                scale: dict[str, Any] = {heads[name]: modules[rule[heads[name]]]}
                others = {key: value for key, value in rule.items() if key not in ("family", heads[name])}
                declare_gaussian(mean=modules[name], **scale, **others)
            elif name not in scales:
                declare(modules[name], **rule)
        except DeclarationError as error:
            raise DeclarationError(_named(name, str(error))) from None


def _has_head(rule: Mapping[str, Any]) -> bool:
    return any(kind in rule for kind in _HEADS)


def _named(name: str, sentence: str) -> str:
    """The sentence with the module's qualified name in it."""
    own = f"layer '{name}'" if name else "the model itself"
    sentence = re.sub(r"^layer '\w+\([\d×]*\)'", own, sentence)  # a layer without a name, by its type and shape
    return sentence if own in sentence else f"{own}: {sentence}"


def _shown(key: Any) -> str:
    return repr(key if isinstance(key, str) else key.__name__)


def _listed(names: Iterable[str], most: int = 30) -> str:
    """The names in quotes, not too many of them."""
    each = [repr(name) for name in names]
    return ", ".join(each[:most]) + (f" and {len(each) - most} more" if len(each) > most else "")


def _near(word: str, known: Iterable[str]) -> str:
    """A question: was this meant? Nothing if nothing is like it."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {near[0]!r}?" if near else ""


def _meant(word: str, known: Iterable[str]) -> str:
    """The rest of a sentence: what was probably meant, or what there is."""
    return _near(word, known) or f"there are {_listed(known)}."
