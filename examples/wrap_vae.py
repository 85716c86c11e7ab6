"""A variational autoencoder as people write it, by Adam and by the natural gradient: the lines that change are marked.

    python examples/wrap_vae.py                  # miniMNIST, 12 seconds for each
    python examples/wrap_vae.py --seconds 60

The encoder gives a Gaussian z, the decoder Bernoulli pixels, and both have a hidden layer of deterministic units. The
evidence bound is maximised by reparametrisation. For the Gaussian and the Bernoulli layer the Fisher blocks are exact;
for the hidden layers they are unit-wise approximations from back-propagated derivatives of *sampled* outputs, which
`optimizer.sample_fisher()` draws before the backward pass.

Both have the same seconds of the processor, and a learning rate that falls to zero in the second half of them. Nothing
of the natural gradient is tuned but its larger batch, which costs it little; Adam has the best of the rates 0.001,
0.003 and 0.01.
"""

import argparse
import itertools
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import dagfisher
from dagfisher import DAGNaturalGradient, datasets, plots
from dagfisher.app import Bar, table

BATCH = {"adam": 100, "natural": 250}
POINTS = 20


class VAE(nn.Module):
    """x → hidden → (mean, log variance) of z → hidden → logits of x."""

    def __init__(self, pixels: int, hidden: int = 200, latent: int = 20):
        super().__init__()
        self.encode = nn.Linear(pixels, hidden)
        self.mean, self.log_var = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decode = nn.Linear(latent, hidden)
        self.out = nn.Linear(hidden, pixels)

    def forward(self, x):
        h = torch.tanh(self.encode(2 * x - 1))
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.exp(log_var / 2) * torch.randn_like(mean)
        return self.out(torch.tanh(self.decode(z))), mean, log_var


def bound(model, x):
    """The evidence lower bound, the mean over the examples, in nats."""
    logits, mean, log_var = model(x)
    reconstruction = -F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum()
    return (reconstruction - divergence) / len(x)


def train(name, data, options):
    """Train one VAE for some seconds of the processor; gives its curve of test bounds and the steps it took."""
    torch.manual_seed(options.seed)
    model = VAE(data.pixels)
    natural = name == "natural"
    if natural:
        dagfisher.declare_model(  # <- what the layers are
            model,
            {
                "mean": {"family": "gaussian", "log_var": "log_var"},
                "out": "bernoulli",
                "encode": "deterministic",
                "decode": "deterministic",
            },
        )
        optimizer = DAGNaturalGradient(model.parameters())  # <- instead of torch.optim.Adam
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=options.adam_lr)
    size = BATCH[name]
    batches = (x for epoch in itertools.count() for x in data.batches(size, seed=options.seed, epoch=epoch))
    spent, done, points, test = 0.0, 0, [], data.evaluation("test")
    falling = LambdaLR(optimizer, lambda step: min(1.0, max(0.0, 2 * (1 - spent / options.seconds))))
    with Bar(options.seconds, name) as bar:
        while spent < options.seconds:
            x, start = next(batches), time.process_time()
            loss = -bound(model, x)
            optimizer.zero_grad()
            if natural:
                optimizer.sample_fisher()  # <- the Fisher of the deterministic layers
            loss.backward()
            optimizer.step()
            falling.step()
            took, done = time.process_time() - start, done + 1
            spent += took
            bar.update(took)
            if spent >= options.seconds * (len(points) + 1) / POINTS:
                with torch.no_grad():
                    points.append((done * size / len(data.train), spent, float(bound(model, test))))
    return plots.Curve("natural gradient" if natural else "Adam", *zip(*points)), done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="of the processor, for each (12)")
    parser.add_argument("--adam-lr", type=float, default=0.003, help="of Adam (0.003; 0.001 and 0.01 end lower)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="1.5 seconds for each")
    parser.add_argument("--out", type=Path, default=Path("runs/wrap_vae.png"), help="the picture")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 1.5
    torch.set_num_threads(1)
    data = datasets.load("mini-mnist")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    curves, lines = [], []
    for name in BATCH:
        curve, steps = train(name, data, options)
        curves.append(curve)
        lines.append(
            [curve.label, str(BATCH[name]), f"{steps:,}", f"{curve.seconds[-1]:.1f}", f"{curve.values[-1]:.2f}"]
        )
    print()  # between this table and that of the layers
    print(table(["gradient", "batch", "steps", "seconds", f"test bound, {data.label}"], lines))
    plots.draw_curves(curves, options.out, title=f"VAE on {data.label}", quantity="evidence lower bound (nats)")
    print(options.out)
