"""A program that trains one model in one of several ways: `python client_programs.py WAY PROCESSES FILE`."""

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dagfisher
from dagfisher import DAGNaturalGradient

BATCH, SAMPLES, EPOCHS = 8, 32, 3


class Model(nn.Module):
    """Two Bernoulli layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 4).double(), nn.Linear(4, 3).double()
        for layer in (self.first, self.second):
            dagfisher.declare(layer, "bernoulli")

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.sigmoid(self.first(x)))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, :3] > 0).double())


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(output, target, reduction="none").sum(1).mean()


def plain(shuffled: bool) -> Model:
    """The model as one process trains it, without anybody's help; `shuffled` as Lightning does by default."""
    model = Model()
    opt = DAGNaturalGradient(model.parameters())
    for epoch in range(EPOCHS):
        order = DistributedSampler(data(), num_replicas=1, rank=0, shuffle=shuffled)
        order.set_epoch(epoch)
        for x, target in DataLoader(data(), batch_size=BATCH, sampler=order):
            opt.zero_grad()
            loss(model(x), target).backward()
            opt.step()
    return model


def accelerated() -> Model | None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    model = Model()
    opt = DAGNaturalGradient(model.parameters())
    wrapped, opt, batches = accelerator.prepare(model, opt, DataLoader(data(), batch_size=BATCH))
    for _ in range(EPOCHS):
        for x, target in batches:
            opt.zero_grad()
            accelerator.backward(loss(wrapped(x), target))
            opt.step()
    assert accelerator.num_processes == 2
    return model if accelerator.is_main_process else None


def main() -> None:
    warnings.simplefilter("ignore")
    way, processes, file = sys.argv[1:]
    torch.set_num_threads(1)
    if way == "accelerate":
        model = accelerated()
    else:
        from lightning_client import trained

        model = trained(way, int(processes))
    if model is not None:
        torch.save(model.state_dict(), Path(file))


if __name__ == "__main__":
    main()
