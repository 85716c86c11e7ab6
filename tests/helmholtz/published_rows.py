"""The published rows, written down from the sources a second time and in another form than the presets have.

Each line is a preset's name without its source, then learning rate, damping, K, epochs and test log-likelihood, with a
dash where there is none, and what else is printed.
"""

THESIS = """
Appendix D (24 seeds)
mini-mnist-b-nrws-100            0.002  0.05  1000  100   -28.39
mini-mnist-b-nrws-200            0.002  0.05  1000  200   -28.20
Table D.1
mini-mnist-b-ws                  0.04   -     -     500   -29.337
mini-mnist-b-rws                 0.02   -     -     500   -28.695
mini-mnist-b-nrws                0.004  0.05  1000  500   -27.606
mini-mnist-c-ws                  0.02   -     -     500   -38.232
mini-mnist-c-rws                 0.01   -     -     500   -37.811
mini-mnist-c-nrws                0.004  0.05  1000  500   -36.578
Table 5.1
mnist-ws                         0.002  -     -     2000  -90.56
mnist-rws                        0.002  -     -     2000  -87.36
mnist-dnrws                      0.002  0.2   1     2000  -86.88
mnist-nrws                       0.002  0.2   1000  2000  -84.91
Table 5.2
fashion-mnist-rws                0.004  -     -     2000  -236.96
fashion-mnist-nrws               0.002  0.1   1000  2000  -235.65
faces-rws                        0.002  -     -     2000  -372.73
faces-nrws                       0.002  0.2   1000  2000  -370.05
Section 5.3.7 (10 seeds)
faces-nrws-1000                  0.002  0.2   1000  1000  -370.0
Table 5.3
mnist-bihm                       0.001  -     -     2000  -87.6  p* -90.745
mnist-nbihm                      0.001  0.1   1000  2000  -86.18  p* -89.21
Table 5.4
fashion-mnist-bihm               0.002  -     -     2000  -237.99  p* -239.41
fashion-mnist-nbihm              0.002  0.1   1000  2000  -235.95  p* -237.15
faces-bihm                       0.002  -     -     2000  -375.44  p* -375.54
faces-nbihm                      0.002  0.2   1000  2000  -370.24  p* -370.39
Table 6.1
mnist-rws-slow                   0.0001 -     -     2000  -97.58
mnist-rws-momentum               0.0001 -     -     2000  -87.14   momentum 0.95
mnist-rws-nesterov               0.0001 -     -     2000  -87.25   nesterov 0.95
mnist-rws-adam                   0.0001 -     -     2000  -86.75   adam 0.9 0.999
mnist-rws-slow-5000              0.0001 -     -     5000  -92.83
mnist-rws-momentum-5000          0.0001 -     -     5000  -86      momentum 0.95
mnist-rws-nesterov-5000          0.0001 -     -     5000  -86.07   nesterov 0.95
mnist-rws-adam-5000              0.0001 -     -     5000  -85.65   adam 0.9 0.999
mnist-nrws-slow                  0.0001 0.2   1000  2000  -90.79
mnist-nrws-momentum              0.0001 0.2   1000  2000  -85.7    momentum 0.95
mnist-nrws-nesterov              0.0001 0.2   1000  2000  -85.47   nesterov 0.95
mnist-nrws-adam                  0.0001 0.2   1000  2000  -86.59   adam 0.9 0.999
Table 6.2
fashion-mnist-rws-slow           0.0001 -     -     2000  -249.44
fashion-mnist-rws-momentum       0.0001 -     -     2000  -239.05  momentum 0.95
fashion-mnist-rws-nesterov       0.0001 -     -     2000  -238.99  nesterov 0.95
fashion-mnist-rws-adam           0.0001 -     -     2000  -238.28  adam 0.9 0.999
fashion-mnist-rws-slow-5000      0.0001 -     -     5000  -244.85
fashion-mnist-rws-momentum-5000  0.0001 -     -     5000  -237.44  momentum 0.95
fashion-mnist-rws-nesterov-5000  0.0001 -     -     5000  -237.39  nesterov 0.95
fashion-mnist-rws-adam-5000      0.0001 -     -     5000  -236.66  adam 0.9 0.999
fashion-mnist-nrws-slow          0.0001 0.1   1000  2000  -243.1
fashion-mnist-nrws-momentum      0.0001 0.1   1000  2000  -236.16  momentum 0.95
fashion-mnist-nrws-nesterov      0.0001 0.1   1000  2000  -236.29  nesterov 0.95
fashion-mnist-nrws-adam          0.0001 0.1   1000  2000  -237.33  adam 0.9 0.999
faces-rws-slow                   0.0001 -     -     2000  -377.77
faces-rws-momentum               0.0001 -     -     2000  -373.76  momentum 0.95
faces-rws-nesterov               0.0001 -     -     2000  -373.72  nesterov 0.95
faces-rws-adam                   0.0001 -     -     2000  -371.51  adam 0.9 0.999
faces-rws-slow-5000              0.0001 -     -     5000  -377.24
faces-rws-momentum-5000          0.0001 -     -     5000  -372.57  momentum 0.95
faces-rws-nesterov-5000          0.0001 -     -     5000  -372.42  nesterov 0.95
faces-rws-adam-5000              0.0001 -     -     5000  -370.89  adam 0.9 0.999
faces-nrws-slow                  0.0001 0.2   1000  2000  -376.74
faces-nrws-momentum              0.0001 0.2   1000  2000  -369.7   momentum 0.95
faces-nrws-nesterov              0.0001 0.2   1000  2000  -369.68  nesterov 0.95
faces-nrws-adam                  0.0001 0.2   1000  2000  -370.01  adam 0.9 0.999
Table 6.3
fashion-mnist-rws-plain          0.004  -     -     2000  -239.39
fashion-mnist-rws-l1             0.004  -     -     2000  -239.29  l1 0.00001
fashion-mnist-rws-l2             0.004  -     -     2000  -239.34  l2 0.00001
fashion-mnist-rws-plain-5000     0.004  -     -     5000  -237.47
fashion-mnist-rws-l1-5000        0.004  -     -     5000  -237.61  l1 0.00001
fashion-mnist-rws-l2-5000        0.004  -     -     5000  -237.63  l2 0.00001
fashion-mnist-nrws-plain         0.002  0.1   1000  2000  -236.49
fashion-mnist-nrws-l1            0.002  0.1   1000  2000  -236.65  l1 0.00001
fashion-mnist-nrws-l2            0.002  0.1   1000  2000  -236.51  l2 0.00001
faces-rws-plain                  0.002  -     -     2000  -373.87
faces-rws-l1                     0.002  -     -     2000  -372.89  l1 0.01
faces-rws-l2                     0.002  -     -     2000  -370.39  l2 0.05
faces-rws-plain-5000             0.002  -     -     5000  -372.63
faces-rws-l1-5000                0.002  -     -     5000  -372.9   l1 0.01
faces-rws-l2-5000                0.002  -     -     5000  -370.3   l2 0.05
faces-nrws-plain                 0.002  0.2   1000  2000  -370.32
faces-nrws-l1                    0.002  0.2   1000  2000  -372.5   l1 0.01
faces-nrws-l2                    0.002  0.2   1000  2000  -370.9   l2 0.1
Table 6.4
fashion-mnist-rws-entropy        0.004  -     -     2000  -238.71  entropy 2.0
fashion-mnist-rws-entropy-5000   0.004  -     -     5000  -237.04  entropy 2.0
fashion-mnist-nrws-entropy       0.002  0.1   1000  2000  -236.05  entropy 2.0
faces-rws-entropy                0.002  -     -     2000  -373.18  entropy 2.0
faces-rws-entropy-5000           0.002  -     -     5000  -371.31  entropy 2.0
faces-nrws-entropy               0.002  0.2   1000  2000  -369.61  entropy 2.0
Table 6.5
mnist-nrws-best                  0.0001 0.2   1000  2000  -84.88   nesterov 0.95 entropy 0.5
fashion-mnist-nrws-best          0.0001 0.1   1000  2000  -235.43  nesterov 0.95 entropy 0.5
faces-nrws-best                  0.0001 0.2   1000  2000  -369.61  momentum 0.95 entropy 2.0
"""

PAPER = """
Table 1
mini-mnist-b-ws                  0.02   -     -     500   -29.337
mini-mnist-b-rws                 0.05   -     -     500   -28.695
mini-mnist-b-nrws                0.002  0.05  100   500   -27.606
mini-mnist-c-ws                  0.02   -     -     500   -38.232
mini-mnist-c-rws                 0.005  -     -     500   -37.811
mini-mnist-c-nrws                0.002  0.05  100   500   -36.578
Table 2
mnist-ws                         0.02   -     -     2000  -89.84
mnist-rws                        0.02   -     -     2000  -86.168
mnist-nrws                       0.02   0.1   100   2000  -86.138
"""

MNIST = (300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10)
LAYERS = {
    "mini-mnist": (100, 50, 20, 10, 10),
    "mnist": MNIST,
    "fashion-mnist": MNIST,
    "faces": (300, 200, 100, 75, 50, 35, 30, 25, 20, 20),
    "Table 6.1": (300, 200, 100, 75, 50, 35, 30, 25, 20, 10),
}


def expected() -> dict[str, dict[str, object]]:
    """What each row prints, by the names of settings; ``source`` and ``published`` are of the preset itself."""
    found: dict[str, dict[str, object]] = {}
    for origin, text in (("thesis", THESIS), ("paper", PAPER)):
        place = ""
        for line in text.strip().splitlines():
            if line[0].isupper():
                place = line
                continue
            name, rate, damping, kept, epochs, figure, *more = line.split()
            row: dict[str, object] = {"source": f"{origin}, {place}", "published": float(figure), "lr": float(rate)}
            row |= {"damping": None if damping == "-" else float(damping), "epochs": int(epochs)}
            row |= {"update_every": None if kept == "-" else int(kept), "momentum": 0.0, "nesterov": False}
            row |= {"adam": None, "l1": 0.0, "l2": 0.0, "entropy": 0.0, "warm_up_epochs": 0.0}
            data = next(d for d in ("mini-mnist", "fashion-mnist", "mnist", "faces") if name.startswith(d))
            row |= {"layers": LAYERS.get(place, LAYERS[data])}
            _add(row, more)
            found[f"{origin}-{name}"] = row
    return found


def _add(row: dict[str, object], more: list[str]) -> None:
    while more:
        word = more.pop(0)
        if word == "p*":
            row["source"] = f"{row['source']}, p* {more.pop(0)}"
        elif word == "adam":
            row |= {"adam": (float(more.pop(0)), float(more.pop(0)))}
        elif word == "nesterov":
            row |= {"momentum": float(more.pop(0)), "nesterov": True}
        else:
            row[word] = float(more.pop(0))
            if word == "entropy":
                row["warm_up_epochs"] = 50.0
