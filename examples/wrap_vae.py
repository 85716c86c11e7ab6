"""A variational autoencoder as people write it, by Adam and by the natural gradient: the lines that change are marked.

    python examples/wrap_vae.py                  # miniMNIST, about a minute for each
    python examples/wrap_vae.py --steps 6000

The encoder gives a Gaussian z, the decoder Bernoulli pixels, and both have a hidden layer of deterministic units. The
evidence bound is maximised by reparametrisation. For the Gaussian and the Bernoulli layer the Fisher blocks are exact;
for the hidden layers they are unit-wise approximations from back-propagated derivatives of *sampled* outputs, which
`optimizer.sample_fisher()` draws before the backward pass. In a network as small as this the natural gradient is ahead
after equal epochs, and Adam after equal seconds.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import dagfisher
from dagfisher import DAGNaturalGradient, datasets, plots
from dagfisher.app import Bar, table


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
    """Train one VAE; gives its curve of test bounds."""
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
        optimizer = DAGNaturalGradient(  # <- instead of torch.optim.Adam
            model.parameters(), lr=options.natural_lr, damping=0.3, update_every=100, betas=(0.9, 0.999)
        )
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=options.adam_lr)
    test = data.evaluation("test")
    epochs, seconds, values = [], [], []
    spent, done, count = 0.0, 0, data.batch_count(100)
    with Bar(options.steps, name) as bar:
        while done < options.steps:
            for x in data.batches(100, seed=options.seed, epoch=done // count):
                start = time.perf_counter()
                loss = -bound(model, x)
                optimizer.zero_grad()
                if natural:
                    optimizer.sample_fisher()  # <- the Fisher of the deterministic layers
                loss.backward()
                optimizer.step()
                spent += time.perf_counter() - start
                done += 1
                bar.update(1)
                if done % max(1, options.steps // 20) == 0 or done == options.steps:
                    with torch.no_grad():
                        values.append(float(bound(model, test)))
                    epochs.append(done / count)
                    seconds.append(spent)
                if done == options.steps:
                    break
    return plots.Curve("natural gradient, Adam's moments" if natural else "Adam", epochs, seconds, values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=4000, help="minibatches of 100 for each (4000)")
    parser.add_argument("--adam-lr", type=float, default=0.003, help="of Adam (0.003; 0.001 and 0.01 end lower)")
    parser.add_argument("--natural-lr", type=float, default=0.003, help="of the other (0.003; 0.001, 0.006 end lower)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="60 steps each")
    parser.add_argument("--out", type=Path, default=Path("runs/wrap_vae.png"), help="the picture")
    options = parser.parse_args()
    if options.quick:
        options.steps = 60
    torch.set_num_threads(1)
    data = datasets.load("mini-mnist")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    curves = [train(name, data, options) for name in ("adam", "natural")]
    lines = [[c.label, f"{options.steps:,}", f"{c.seconds[-1]:.0f}", f"{c.values[-1]:.2f}"] for c in curves]
    print(table(["gradient", "steps", "seconds", f"test bound, {data.label}"], lines))
    plots.draw_curves(curves, options.out, title=f"VAE on {data.label}", quantity="evidence lower bound (nats)")
    print(options.out)
