"""A convolutional variational autoencoder by Adam and by the natural gradient: the lines that change are marked.

    python examples/wrap_conv_vae.py             # miniMNIST, 20 seconds for each
    python examples/wrap_conv_vae.py --seconds 60

As wrap_vae.py, with convolutions in the encoder and transposed convolutions in the decoder. One rule for each type is
enough to declare them: every convolution that is not the output is a deterministic layer, one block per channel.

Nothing of the natural gradient is tuned; Adam has the best of the rates 0.001, 0.003 and 0.01.
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

BATCH = {"adam": 100, "natural": 100}
POINTS = 20


class ConvVAE(nn.Module):
    """14×14 → 8×7×7 → 16×4×4 → z → 16×4×4 → 8×7×7 → 14×14."""

    def __init__(self, latent: int = 20):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ELU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ELU()
        )
        self.mean, self.log_var = nn.Linear(256, latent), nn.Linear(256, latent)
        self.expand = nn.Linear(latent, 256)
        self.decoder = nn.Sequential(
            nn.ELU(), nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1), nn.ELU(), nn.ConvTranspose2d(8, 1, 4, 2, 1)
        )

    def forward(self, x):
        h = self.encoder(2 * x - 1).flatten(1)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.exp(log_var / 2) * torch.randn_like(mean)
        return self.decoder(self.expand(z).reshape(-1, 16, 4, 4)), mean, log_var


def bound(model, x):
    """The evidence lower bound, the mean over the examples, in nats."""
    logits, mean, log_var = model(x)
    reconstruction = -F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum()
    return (reconstruction - divergence) / len(x)


def train(name, data, options):
    """Train one VAE for some seconds of the processor; gives its curve of test bounds and the steps it took."""
    torch.manual_seed(options.seed)
    model = ConvVAE()
    natural = name == "natural"
    if natural:
        dagfisher.declare_model(  # <- what the layers are
            model,
            {
                "mean": {"family": "gaussian", "log_var": "log_var"},
                "decoder.3": "bernoulli",
                "expand": "deterministic",
                nn.Conv2d: "deterministic",
                nn.ConvTranspose2d: "deterministic",
            },
        )
        optimizer = DAGNaturalGradient(model.parameters())  # <- instead of torch.optim.Adam
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=options.adam_lr)
    size = BATCH[name]
    batches = (x for epoch in itertools.count() for x in data.batches(size, seed=options.seed, epoch=epoch))
    spent, done, points, test = 0.0, 0, [], data.evaluation("test")[:2000].reshape(-1, 1, 14, 14)
    falling = LambdaLR(optimizer, lambda step: min(1.0, max(0.0, 2 * (1 - spent / options.seconds))))
    with Bar(options.seconds, name) as bar:
        while spent < options.seconds:
            x, start = next(batches), time.process_time()
            loss = -bound(model, x.reshape(-1, 1, 14, 14))
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
    parser.add_argument("--seconds", type=float, default=20.0, help="of the processor, for each (20)")
    parser.add_argument("--adam-lr", type=float, default=0.01, help="of Adam (0.01; 0.001 and 0.003 end lower)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="1.5 seconds for each")
    parser.add_argument("--out", type=Path, default=Path("runs/wrap_conv_vae.png"), help="the picture")
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
    plots.draw_curves(
        curves, options.out, title=f"Convolutional VAE on {data.label}", quantity="evidence lower bound (nats)"
    )
    print(options.out)
