"""Ways to do it wrong, for the table of bad input; each restores what it changed, so that a run can go on."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from by_hand import Net, backward, data, loss, optimizer, same
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.utils import parametrizations

from dagfisher import DAGNaturalGradient, declare, declare_gaussian, no_capture, sample_weights

X = data(6, 4)
Bad = Callable[[Any, DAGNaturalGradient], Any]


class Counts(nn.Module):
    """One Poisson layer, 'rate'."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rate = nn.Linear(4, 2).double()
        declare(self.rate, "poisson")

    def forward(self, x: Tensor) -> Tensor:
        return self.rate(x)


class Heads(nn.Module):
    """A Gaussian layer with two heads, 'mean' and 'scale'."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean, self.scale = nn.Linear(4, 2).double(), nn.Linear(4, 2).double()
        declare_gaussian(mean=self.mean, log_std=self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.mean(x) + self.scale(x)


class Convolution(nn.Module):
    """One Bernoulli convolution, 'conv'."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(1, 2, 2).double()
        declare(self.conv, "bernoulli", max_rows=7)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.unsqueeze(1)).flatten(1)


class WithTable(Net):
    """An undeclared table whose gradient is sparse if it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 2, sparse=True).double()


class Backwards(nn.Module):
    """Declared layers whose parameters come in the order 'last', 'first', with an undeclared 'norm' between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last, self.norm, self.first = (m.double() for m in (nn.Linear(3, 2), nn.LayerNorm(3), nn.Linear(4, 3)))
        declare(self.last, "bernoulli")
        declare(self.first, "bernoulli")
        self.between: Callable[[Tensor], Tensor] = torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.between(self.first(x))))


class Hidden(nn.Module):
    """A deterministic layer, 'hidden', below a Bernoulli layer, 'out'."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.out = nn.Linear(4, 3).double(), nn.Linear(3, 2).double()
        declare(self.hidden, "deterministic")
        declare(self.out, "bernoulli")

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x)))


def step(net: nn.Module, opt: DAGNaturalGradient, x: Tensor = X, factor: float = 1.0) -> None:
    opt.zero_grad()
    (loss(net(x)) * factor).backward()
    opt.step()


def with_value(name: str, value: float) -> Bad:
    def bad(net: nn.Module, opt: DAGNaturalGradient) -> None:
        parameter = net.get_parameter(name)
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.view(-1)[0] = value
        try:
            step(net, opt)
        finally:
            parameter.data.copy_(kept)

    return bad


def with_input(value: float) -> Bad:
    def bad(net: nn.Module, opt: DAGNaturalGradient) -> None:
        x = X.clone()
        x[2, 1] = value
        step(net, opt, x)

    return bad


class _Ruin(torch.autograd.Function):
    """The identity, whose derivative is NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * float("nan")


def between(function: Callable[[Tensor], Tensor]) -> Bad:
    """Something else than tanh between the two layers of `Backwards`."""

    def bad(net: Backwards, opt: DAGNaturalGradient) -> None:
        kept, net.between = net.between, function
        try:
            step(net, opt)
        finally:
            net.between = kept

    return bad


ruined: Callable[[Tensor], Tensor] = _Ruin.apply


def reused(bad: Bad) -> Bad:
    """The same on a step that reuses its Fisher."""

    def later(net: nn.Module, opt: DAGNaturalGradient) -> None:
        twin = copy.deepcopy(net)
        other = optimizer(twin.named_parameters(), lr=0.01, update_every=9)
        step(twin, other)
        kept = copy.deepcopy(twin)
        try:
            bad(twin, other)
        finally:
            assert same(twin, kept)

    return later


def asked_too_early(net: nn.Module, opt: DAGNaturalGradient) -> None:
    other = Net(3)
    optimizer(other.named_parameters()).fisher_blocks(other.head.weight)


def sampled_too_late(net: nn.Module, opt: DAGNaturalGradient) -> None:
    model = Hidden()
    other = optimizer(model.named_parameters())
    loss(model(X)).backward()
    other.sample_fisher()


def with_gradients(value: float) -> Bad:
    def bad(net: nn.Module, opt: DAGNaturalGradient) -> None:
        backward(net, opt, X)
        for p in net.parameters():
            p.grad.fill_(value)
        opt.step()

    return bad


def weighted(weights: Any) -> Bad:
    def bad(net: nn.Module, opt: DAGNaturalGradient) -> None:
        with sample_weights(weights):
            backward(net, opt, X)
        opt.step()

    return bad


def set_to(**settings: Any) -> Bad:
    """Settings that somebody puts into the param group in the middle of a run."""

    def bad(net: nn.Module, opt: DAGNaturalGradient) -> None:
        group = opt.param_groups[0]
        good = dict(group)
        group.update(settings)
        try:
            step(net, opt)
        finally:
            group.clear()
            group.update(good)

    return bad


def build(*params: Any, **settings: Any) -> Bad:
    return lambda net, opt: DAGNaturalGradient(*(params or [net.parameters()]), **settings)


def replaced(name: str, make: Callable[[Tensor], Tensor]) -> Bad:
    """Another parameter in the place of one that the optimizer holds."""

    def bad(net: nn.Module, opt: DAGNaturalGradient) -> None:
        kept = getattr(net.head, name)
        setattr(net.head, name, nn.Parameter(make(kept.detach())))
        try:
            step(net, opt)
        finally:
            setattr(net.head, name, kept)

    return bad


def reshaped(weight: tuple[int, int], bias: int) -> Bad:
    def bad(net: nn.Module, opt: DAGNaturalGradient) -> None:
        kept = net.head.weight.data, net.head.bias.data
        net.head.weight.data, net.head.bias.data = data(*weight), data(bias)
        net.zero_grad()
        try:
            loss(net.head(data(6, weight[1]))).backward()
            opt.step()
        finally:
            net.head.weight.data, net.head.bias.data = kept
            opt.zero_grad()

    return bad


def parametrized(net: Net, opt: DAGNaturalGradient) -> None:
    kept = net.head.weight
    parametrizations.spectral_norm(net.head)
    try:
        step(net, opt)
    finally:
        nn.utils.parametrize.remove_parametrizations(net.head, "weight", leave_parametrized=False)
        bias, net.head.weight = net.head.bias, kept
        del net.head.bias
        net.head.bias = bias  # in the order of before


def fresh(change: Callable[[nn.Linear], Any]) -> Bad:
    """A new declared layer that is changed before its optimizer is built."""

    def bad(net: nn.Module, opt: DAGNaturalGradient) -> None:
        model = nn.ModuleDict({"fc": nn.Linear(3, 2)})
        declare(model["fc"], "bernoulli")
        change(model["fc"])
        DAGNaturalGradient(model.parameters())

    return bad


def declaring(family: str = "bernoulli", layer: Callable[[], Any] = lambda: nn.Linear(3, 4), **settings: Any) -> Bad:
    return lambda net, opt: declare(layer(), family, **settings)


def cleared(net: Net, opt: DAGNaturalGradient) -> None:
    backward(net, opt, X)
    kept = [p.grad for p in net.parameters()]
    opt.zero_grad()
    for p, grad in zip(net.parameters(), kept, strict=True):
        p.grad = grad
    opt.step()


def uncaptured(net: Net, opt: DAGNaturalGradient) -> None:
    with no_capture():
        step(net, opt)


def of_another_model(net: Net, opt: DAGNaturalGradient) -> None:
    step(net, optimizer(Net(1).named_parameters()))


def removed(net: Net, opt: DAGNaturalGradient) -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 2), "removed": nn.Linear(4, 2)}).double()
    for layer in model.values():
        declare(layer, "bernoulli")
    other = optimizer(model.named_parameters())
    del model["removed"]
    step(model["used"], other)


def newer(net: Net, opt: DAGNaturalGradient) -> None:
    other = optimizer(net.parameters())
    try:
        step(net, opt)
    finally:
        del other
        opt._bind()  # what building it anew does


def often(net: Heads, opt: DAGNaturalGradient) -> None:
    backward(net, opt, X)
    loss(net.mean(X)).backward()
    opt.step()


def two_outputs(net: Net, opt: DAGNaturalGradient) -> None:
    class Pair(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            return super().forward(input), input

    layer = Pair(3, 2)
    declare(layer, "bernoulli")
    listening = optimizer([(f"pair.{n}", p) for n, p in layer.named_parameters()])
    assert listening.memory_usage() == {"pair": 0}
    layer(torch.ones(2, 3))


def sparse(net: WithTable, opt: DAGNaturalGradient) -> None:
    backward(net, opt, X)
    net.table(torch.tensor([0, 2])).sum().backward()
    opt.step()


def complex_parameter(net: Net, opt: DAGNaturalGradient) -> None:
    p = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    p.grad = torch.ones_like(p)
    optimizer([("phase", p)]).step()


def damaged(change: Callable[[dict[str, Any]], Any]) -> Bad:
    """A checkpoint of this very optimizer, changed."""

    def bad(net: nn.Module, opt: DAGNaturalGradient) -> None:
        twin = Net()
        other = optimizer(twin.named_parameters(), lr=0.5, momentum=0.5, update_every=2)
        for _ in range(3):
            step(twin, other)
        state = other.state_dict()
        opt.load_state_dict(change(state) or state)

    return bad


def carried(change: Callable[[dict[str, Any]], Any]) -> Bad:
    """A state of `torch.distributed.checkpoint`, changed: the layers are with their parameters."""

    def bad(net: nn.Module, opt: DAGNaturalGradient) -> None:
        twin = Net()
        other = optimizer(twin.named_parameters(), lr=0.5, momentum=0.5, update_every=2)
        for _ in range(3):
            step(twin, other)
        state = get_optimizer_state_dict(twin, other)
        change(state["state"])
        set_optimizer_state_dict(net, opt, state)

    return bad


def layer_state(change: Callable[[dict[str, Any]], Any]) -> Bad:
    return damaged(lambda s: change(s["dagfisher"]["layers"][1]))


def factors(value: Any) -> Bad:
    return layer_state(lambda s: s["solvers"][0].update(inverses=value))


def moments(**values: Any) -> Bad:
    def change(state: dict[str, Any]) -> None:
        state["state"][3] = {k: v for k, v in {**state["state"][3], **values}.items() if v is not None}

    return damaged(change)
