"""A module whose output is not its declared map is refused by name; whoever knows better can say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exact import exact
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.capture.agreement import is_its_map
from dagfisher.declaration import declaration_of
from dagfisher.errors import DeclarationError
from dagfisher.maps import Map
from dagfisher.testing import check_map

F64 = torch.float64


class MaskedLinear(nn.Linear):
    """As every MADE has it."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones_like(self.weight).tril(-1)
        return F.linear(x, mask * self.weight, self.bias)


class NearlyUnmasked(nn.Linear):
    """One entry of all is masked."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones_like(self.weight)
        mask[1, 2] = 0
        return F.linear(x, mask * self.weight, self.bias)


class ScaledLinear(nn.Linear):
    """A weight with a gain, as equalised learning rates have it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * 0.5, self.bias)


class StandardisedConv(nn.Conv2d):
    """A weight that is standardised on the way."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), keepdim=True)
        return self._conv_forward(x, w, self.bias)


class MaskedConv(nn.Conv2d):
    """As a PixelCNN has it."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones_like(self.weight)
        mask[:, :, 1, 1:] = 0
        mask[:, :, 2] = 0
        return self._conv_forward(x, mask * self.weight, self.bias)


class ChangedInput(nn.Linear):
    """The parents are not what the module was given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.relu(x))


class DroppedWeights(nn.Linear):
    """DropConnect."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.dropout(self.weight, 0.3), self.bias)


class WithoutBias(nn.Linear):
    """The bias is left out."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


OTHERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "masked linear": (lambda: MaskedLinear(4, 4), (6, 4)),
    "one entry masked": (lambda: NearlyUnmasked(40, 30), (6, 40)),
    "scaled weight": (lambda: ScaledLinear(4, 3), (6, 4)),
    "standardised convolution": (lambda: StandardisedConv(2, 3, 3), (4, 2, 5, 5)),
    "masked convolution": (lambda: MaskedConv(2, 3, 3), (4, 2, 5, 5)),
    "changed input": (lambda: ChangedInput(4, 3), (6, 4)),
    "DropConnect": (lambda: DroppedWeights(8, 3), (6, 8)),
    "no bias": (lambda: WithoutBias(4, 3), (6, 4)),
    "on a sequence": (lambda: MaskedLinear(4, 4), (6, 5, 4)),
}


def net_of(module: nn.Module, dtype: torch.dtype) -> tuple[nn.Module, DAGNaturalGradient]:
    torch.manual_seed(0)
    net = nn.ModuleDict({"odd": module}).to(dtype)
    for p in net.parameters():
        nn.init.normal_(p)
    dagfisher.declare(module, "bernoulli")
    return net, exact(net.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
@pytest.mark.parametrize(("make", "shape"), OTHERS.values(), ids=OTHERS.keys())
def test_it_is_refused_at_its_first_captured_pass(
    make: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    if dtype == torch.bfloat16 and shape == (6, 40):
        pytest.skip("one product among 40 is within the rounding of bfloat16")
    net, _ = net_of(make(), dtype)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(DeclarationError, match=r"layer 'odd': .* is not weight · input \+ bias.*mask=.*check=False"):
        net["odd"](torch.randn(shape, dtype=dtype))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


RIGHT: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(300, 40), (64, 300)),
    "a derived type": (type("Derived", (nn.Linear,), {})(30, 20), (8, 30)),
    "convolution": (nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"), (4, 3, 9, 9)),
    "grouped convolution": (nn.Conv2d(4, 8, 3, groups=2), (4, 4, 6, 6)),
    "transposed convolution": (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, output_padding=1), (3, 4, 5, 5)),
    "prior": (dagfisher.nn.Prior(5), ()),
    "one sample": (nn.Linear(5, 4), (5,)),
    "an image": (nn.Conv2d(1, 2, 3), (1, 5, 5)),
    "no sample": (nn.Linear(5, 4), (0, 5)),
}


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
@pytest.mark.parametrize(("module", "shape"), RIGHT.values(), ids=RIGHT.keys())
def test_a_module_that_is_its_map_is_never_refused(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, scale: float
) -> None:
    module = module.to(dtype)
    dagfisher.declare(module, "bernoulli")
    opt = exact(module.parameters())
    x: Any = scale * torch.randn(shape).to(dtype) if shape else 7
    with torch.autocast("cpu", enabled=dtype == torch.float32):
        module(x)
    module(x)
    assert len(opt._layers[0].recorder.passes) == 2


def test_autocast_is_not_mistaken_for_another_map() -> None:
    module = nn.Linear(500, 30)
    dagfisher.declare(module, "bernoulli")
    opt = exact(module.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for seed in range(20):
            torch.manual_seed(seed)
            module(torch.randn(40, 500))
    assert len(opt._layers[0].recorder.passes) == 20


class Gated(nn.Linear):
    """A linear map until its buffer says otherwise."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * super().forward(x)


def test_it_is_looked_at_again_after_load_state_dict_and_to() -> None:
    net, opt = net_of(Gated(4, 3), torch.float32)
    x = torch.randn(6, 4)
    net["odd"](x).sum().backward()
    opt.step()
    net.load_state_dict({**net.state_dict(), "odd.gain": torch.tensor(2.0)})
    with pytest.raises(DeclarationError, match="layer 'odd'"):
        net["odd"](x)
    net["odd"].gain.fill_(1.0)
    net.double()
    net["odd"](x.double())
    net["odd"].gain.fill_(3.0)
    with pytest.raises(DeclarationError, match="layer 'odd'"):
        net["odd"](x.double())


def test_whoever_knows_better_can_say_so() -> None:
    module = ScaledLinear(4, 3)
    dagfisher.declare(module, "bernoulli", check=False)
    opt = exact(module.parameters())
    module(torch.randn(6, 4)).sum().backward()
    opt.step()


class Adapted(nn.Linear):
    """A low-rank adapter on frozen base weights."""

    def __init__(self, parents: int, units: int, rank: int) -> None:
        super().__init__(parents, units)
        self.down = nn.Parameter(torch.randn(rank, parents), requires_grad=False)
        self.up = nn.Parameter(torch.zeros(units, rank))
        self.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(F.linear(x, self.down), self.up)


class AdapterMap(Map):
    """The adapter's upper matrix is the weight; what the base weight gives is an offset."""

    def parameters(self, module: Any) -> tuple[Tensor | None, Tensor | None]:
        return module.up, module.bias

    def units(self, module: Any) -> int:
        return int(module.out_features)

    def samples(self, module: Any, parents: Any, shape: torch.Size) -> torch.Size:
        return shape[:-1]

    def row_size(self, module: Any) -> int:
        return int(module.down.shape[0])

    def rows(self, module: Any, parents: Any, shape: torch.Size) -> Tensor:
        return F.linear(parents, module.down).detach()

    def predictors(self, module: Any, output: Tensor) -> Tensor:
        return output

    def offset(self, module: Any, parents: Any, shape: torch.Size) -> Tensor:
        return F.linear(parents, module.weight)


dagfisher.register_map(Adapted, AdapterMap())


def test_a_low_rank_adapter_on_frozen_weights_is_exact() -> None:
    """Its blocks are the Fisher matrix of (up, bias) by automatic differentiation."""
    torch.manual_seed(0)
    module, x = Adapted(5, 3, 2).double(), torch.randn(7, 5, dtype=F64)
    check_map(AdapterMap(), module, x)
    dagfisher.declare(module, "bernoulli")
    opt = exact([module.up, module.bias], damping=0.1, solver="dense")
    logits = module(x)
    q = torch.sigmoid(logits) * torch.sigmoid(-logits)
    found = opt.fisher_blocks(module.up) * 1.1 - 0.1 * torch.eye(3, dtype=F64)
    for unit in range(3):
        rows = []
        for sample in range(7):
            up, bias = torch.autograd.grad(logits[sample, unit], [module.up, module.bias], retain_graph=True)
            rows.append(torch.cat([up[unit], bias[unit : unit + 1]]))
        jacobian = torch.stack(rows)
        torch.testing.assert_close(found[unit], jacobian.T @ (q[:, unit : unit + 1].detach() * jacobian) / 7)


def test_the_adapter_without_its_offset_would_be_refused() -> None:
    class Forgetful(AdapterMap):
        def offset(self, module: Any, parents: Any, shape: torch.Size) -> None:
            return None

    module = Adapted(5, 3, 2).double()
    with pytest.raises(AssertionError, match="rows times weights"):
        check_map(Forgetful(), module, torch.randn(7, 5, dtype=F64))


# What need not be compared


def changed(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda module, args, output: 2 * output)
    return module


def global_hook(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
    return 2 * output if getattr(module, "doubled", False) else None


SURE: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(4, 3),
    "BernoulliLinear": lambda: dagfisher.nn.BernoulliLinear(4, 3),
    "Conv2d": lambda: nn.Conv2d(1, 2, 2),
    "BernoulliConvTranspose2d": lambda: dagfisher.nn.BernoulliConvTranspose2d(1, 2, 2),
}


@pytest.mark.parametrize("make", SURE.values(), ids=SURE.keys())
def test_what_torch_computes_itself_is_not_compared(make: Callable[[], nn.Module]) -> None:
    module = make()
    dagfisher.declare(module, "bernoulli")
    declaration = declaration_of(module)
    assert is_its_map(declaration)
    handle = module.register_forward_hook(lambda *_: None)
    assert not is_its_map(declaration)
    handle.remove()
    handle = module.register_forward_pre_hook(lambda *_: None)
    assert not is_its_map(declaration)
    handle.remove()
    handle = torch.nn.modules.module.register_module_forward_hook(global_hook)
    assert not is_its_map(declaration)
    handle.remove()
    assert is_its_map(declaration)
    module.forward = lambda x: x
    assert not is_its_map(declaration)


@pytest.mark.parametrize("make", [make for make, _ in OTHERS.values()], ids=OTHERS.keys())
def test_what_may_compute_something_else_is_compared(make: Callable[[], nn.Module]) -> None:
    module = make()
    dagfisher.declare(module, "bernoulli")
    assert not is_its_map(declaration_of(module))


def test_a_mask_that_torch_does_not_know_of_is_compared() -> None:
    module = nn.Linear(4, 3)
    dagfisher.declare(module, "bernoulli", mask=torch.ones(3, 4).tril().bool())
    assert not is_its_map(declaration_of(module))


def test_a_hook_that_changes_the_output_is_refused() -> None:
    net, opt = net_of(changed(nn.Linear(4, 3)), torch.float32)
    with pytest.raises(DeclarationError, match="layer 'odd'"):
        net["odd"](torch.randn(6, 4))
    handle = torch.nn.modules.module.register_module_forward_hook(global_hook)
    try:
        net, opt = net_of(nn.Linear(4, 3), torch.float32)
        net["odd"](torch.randn(6, 4)).sum().backward()
        opt.step()
        net["odd"].doubled = True
        with pytest.raises(DeclarationError, match="layer 'odd'"):
            net["odd"](torch.randn(6, 4))
    finally:
        handle.remove()
