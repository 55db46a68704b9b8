"""DH table 9: PAC-Bayes bounds on MNIST, the paper's methods and ours, row by row.

    python reproductions/dissecting-hessian/table-9/run.py --root DATA --out DIR \
        --rows T-600:LOCAL,T-600:ITER,T-200^2_10:LOCAL --budget 60

A row is NETWORK:METHOD or NETWORK:METHOD:SECONDS, with the networks of the paper (T- and R-: true
and random labels of 0–4 against 5–9; _10: ten classes) and the methods BASE, APPR, ITER, ITER(D),
ITER.M and LOCAL (ours). The budget is the time for optimising the posterior; how many epochs fit
into it is measured first. Every row is written to DIR/rows.json when it is finished, so a run may
be stopped at any time; finished rows are not repeated.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import io
from curvescope.certificates import Certificate, Method, Progress, certify, posterior_method
from curvescope.certificates.blocks import Layout
from curvescope.certificates.optimise import optimise
from curvescope.data import Dataset, dataset
from curvescope.networks.names import network
from curvescope.training import Recipe, train

# DH table 9: bound, KL, stochastic error, ½ log λ.
PAPER: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "T-600": {
        "BASE": (0.154, 4612.6, 0.03373, -1.3313),
        "APPR": (0.1432, 3980.6, 0.03417, -1.6063),
        "ITER": (0.1198, 3766.1, 0.02347, -1.2913),
        "ITER(D)": (0.1199, 3751.1, 0.02366, -1.2913),
        "ITER.M": (0.1255, 3929.9, 0.02494, -1.3213),
    },
    "T-600^2": {
        "BASE": (0.1921, 6966.6, 0.03262, -1.4163),
        "APPR": (0.1658, 5176.1, 0.03468, -2.0963),
        "ITER": (0.1456, 5086.5, 0.02473, -1.7963),
        "ITER(D)": (0.1443, 4956.8, 0.02523, -1.7963),
        "ITER.M": (0.1502, 5024.5, 0.02767, -1.8363),
    },
    "T-1200": {
        "BASE": (0.1754, 5917.6, 0.03295, -1.5463),
        "APPR": (0.1725, 5318.8, 0.03701, -1.8313),
        "ITER": (0.1417, 5071.0, 0.02292, -1.4763),
        "ITER(D)": (0.1413, 5021.1, 0.02316, -1.4763),
        "ITER.M": (0.1493, 5185.4, 0.02576, -1.5363),
    },
    "T-300^2": {
        "BASE": (0.1686, 5514.9, 0.03329, -1.1513),
        "APPR": (0.1434, 4105.4, 0.03296, -1.8063),
        "ITER": (0.1249, 3873.2, 0.02514, -1.4763),
        "ITER(D)": (0.1244, 3833.7, 0.02526, -1.4763),
        "ITER.M": (0.1308, 3987.2, 0.02721, -1.5713),
    },
    "R-600": {
        "BASE": (0.6046, 1144.8, 0.507, -1.8263),
        "APPR": (0.5653, 390.25, 0.5066, -2.4713),
        "ITER(D)": (0.5681, 431.62, 0.5066, -2.4513),
        "ITER.M": (0.5616, 340.62, 0.5065, -2.5263),
    },
    "T-200^2_10": {
        "BASE": (0.4165, 21896.0, 0.04706, -1.1513),
        "APPR": (0.2621, 11068.0, 0.0366, -1.4213),
        "ITER": (0.2145, 9821.0, 0.02229, -1.1513),
        "ITER(D)": (0.2311, 9758.5, 0.03071, -1.1513),
        "ITER.M": (0.2728, 13406.0, 0.02605, -1.1513),
    },
    "T-600_10": {
        "BASE": (0.2879, 12674.0, 0.03854, -1.1513),
        "APPR": (0.2424, 9095.8, 0.04159, -1.6013),
        "ITER": (0.2132, 8697.9, 0.02947, -1.3063),
        "ITER.M": (0.2227, 8870.9, 0.03294, -1.4613),
    },
    "T-600^2_10": {
        "BASE": (0.3472, 17212.0, 0.03884, -1.1513),
        "APPR": (0.2896, 11618.0, 0.04723, -2.0563),
        "ITER": (0.2431, 10568.0, 0.03057, -1.5713),
    },
}

Trained = tuple[nn.Module, dict[str, Tensor], dict[str, Any]]


def main(arguments: list[str] | None = None) -> None:
    """Run the rows that are asked for."""
    options = parser().parse_args(arguments)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.set_float32_matmul_precision("high")  # for optimising; drawing is exact float32
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "rows.json"
    rows: dict[str, Any] = io.read_json(file) if file.exists() else {}
    networks: dict[str, Trained] = {}
    started = time.monotonic()
    for text in options.rows.split(","):
        name, method, seconds = parse(text, options.budget)
        if f"{name}:{method}" in rows:
            say(started, f"{name}:{method} is there already")
            continue
        data, test = (load(name, split, options).to(device) for split in ("train", "test"))
        if name not in networks:
            networks[name] = trained(name, data, options, device, started)
        rows[f"{name}:{method}"] = row(
            name, method, seconds, networks[name], data, test, options, started
        )
        io.write_json(file, rows)
        (options.out / "table.md").write_text(table(rows), encoding="utf-8")
    print(table(rows), flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--root", type=Path, help="the folder with the data files")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--rows", default="T-600:LOCAL,T-200^2_10:LOCAL")
    options.add_argument("--budget", type=float, default=60.0, help="seconds per row")
    options.add_argument("--data", default="mnist", help="mnist, or mnist-6k for a trial")
    options.add_argument("--device")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--sgd-epochs", type=int, default=100, help="DH: 1000")
    options.add_argument("--sgd-momentum", type=float, default=0.9, help="DH: 0")
    options.add_argument(
        "--noise", choices=("local", "shared"), default="local",
        help="of the paper's methods: local has the same objective and less variance; DH: shared",
    )  # fmt: skip
    options.add_argument("--batch-size", type=int, default=500, help="DH: 128")
    options.add_argument("--slack", type=float, default=3e-4)
    options.add_argument("--keep-posteriors", action="store_true")
    return options


def parse(text: str, budget: float) -> tuple[str, str, float]:
    """``T-600:ITER:30`` is the network, the method and its seconds."""
    name, method, *seconds = text.strip().split(":")
    return name, method.upper(), float(seconds[0]) if seconds else budget


def load(name: str, split: str, options: argparse.Namespace) -> Dataset:
    """MNIST-2, MNIST-2 with random labels, or MNIST with ten classes."""
    kind = options.data
    if not name.endswith("_10"):
        kind += "-2-R" if name.startswith("R-") else "-2"
    return dataset(kind, root=options.root, split=split, seed=options.seed)


def trained(
    name: str, data: Dataset, options: argparse.Namespace, device: torch.device, started: float
) -> Trained:
    """The network after SGD with batches of 128 at rate 0.01, and its initial weights.

    DH: 1000 epochs without momentum. 100 epochs with momentum 0.9 go equally far: rate × epochs /
    (1 − momentum) is 10 for both.
    """
    ten = name.endswith("_10")
    generator = torch.Generator().manual_seed(options.seed)
    model = network(
        name.removesuffix("_10"), data.input_shape, 10 if ten else 1, init="dziugaite-roy",
        generator=generator,
    ).to(device)  # fmt: skip
    initial = {key: value.clone() for key, value in model.state_dict().items()}
    loss = "cross_entropy" if ten else "binary_logistic"
    recipe = Recipe(
        seed=options.seed,
        epochs=options.sgd_epochs,
        momentum=options.sgd_momentum,
        loss=loss,
    )
    begin = time.monotonic()
    result = train(model, data, recipe)
    assert result.train is not None, f"{name} diverged"
    seconds = time.monotonic() - begin
    say(started, f"{name}: SGD {seconds:.1f} s, training error {1 - result.train.accuracy:.4f}")
    notes = {"epochs": recipe.epochs, "momentum": recipe.momentum, "seconds": seconds}
    return model, initial, {**notes, "training_error": 1 - result.train.accuracy}


def row(
    name: str,
    method: str,
    seconds: float,
    subject: Trained,
    data: Dataset,
    test: Dataset,
    options: argparse.Namespace,
    started: float,
) -> dict[str, Any]:
    """One certificate, within its time."""
    model, initial, notes = subject
    local = method == "LOCAL" or options.noise == "local"
    size = min(options.batch_size, len(data) // 10)
    chosen = posterior_method(method.lower(), batch_size=size, local=local)
    chosen = fitted(chosen, model, initial, data, seconds, started)
    begin = time.monotonic()
    certificate = certify(
        model, initial, data, test=test, method=chosen, slack=options.slack,
        generator=torch.Generator().manual_seed(options.seed),
        progress=reporter(f"{name}:{method}", started),
    )  # fmt: skip
    spent = time.monotonic() - begin
    if options.keep_posteriors:
        certificate.save(options.out / f"{name}-{method}.json".replace("^", "").replace("(", "-"))
    assert certificate.verify().passed
    paper = PAPER.get(name, {}).get(method)
    say(started, f"{name}:{method}: bound {certificate.bound:.4f} in {spent:.0f} s, paper {paper}")
    return {
        "certificate": certificate.to_json(),
        "seconds": spent,
        "sgd": notes,
        "rho": mean_rho(certificate),
        "paper": paper,
    }


def fitted(
    method: Method,
    model: nn.Module,
    initial: dict[str, Tensor],
    data: Dataset,
    seconds: float,
    started: float,
) -> Method:
    """The method with as many epochs as fit into its time, measured on a few."""
    settings = {"refresh": 1 if method.refresh else 0}
    times: dict[bool, float] = {}
    prior = Layout.of(model).flatten(initial)
    for refreshed in (True, False):
        if refreshed and not method.refresh:
            continue
        stamps: list[float] = []

        def note(progress: Progress, stamps: list[float] = stamps) -> None:
            stamps.append(time.monotonic())

        trial = posterior_method(method.name, batch_size=method.batch_size, local=method.local)
        trial = replace(trial, epochs=4, **(settings if refreshed else {"refresh": 0}))
        generator = torch.Generator().manual_seed(0)
        optimise(model, prior, data.tensors, trial, generator=generator, progress=note)
        times[refreshed] = (stamps[-1] - stamps[1]) / (len(stamps) - 2)
    epoch = times[False]
    refresh = max(times.get(True, epoch) - epoch, 0.0)
    every = method.refresh or 1
    epochs = int(seconds / (epoch + refresh / every))
    if method.name == "local" and epochs > 60 * every:  # more than 60 new bases gain nothing
        every = max(every, math.ceil(seconds / (epoch * 60)))
        epochs = int(seconds / (epoch + refresh / every))
    epochs = max(5, epochs)
    say(started, f"an epoch takes {epoch:.4f} s, a new basis {refresh:.3f} s: {epochs} epochs")
    return replace(method, epochs=epochs, refresh=every if method.refresh else 0)


def reporter(name: str, started: float) -> Callable[[Progress], None]:
    """Print how far it is, every few seconds."""
    last = [time.monotonic()]

    def report(progress: Progress) -> None:
        if time.monotonic() - last[0] >= 5 or progress.done == progress.total:
            last[0] = time.monotonic()
            word = "bound about" if progress.task == "optimise" else "error"
            done = f"{progress.task} {progress.done}/{progress.total}"
            say(started, f"{name}: {done}, {word} {progress.bound:.4f}")

    return report


def mean_rho(certificate: Certificate) -> list[float]:
    """``½ log λ`` of each prior term, the paper's column "λ (prior)"."""
    return [round(0.5 * math.log(term.variance), 4) for term in certificate.prior]


def table(rows: dict[str, Any]) -> str:
    """The rows as Markdown, the paper's numbers beside ours."""
    lines = [
        "| network | method | bound | paper | KL | paper | stochastic error ≤ | paper "
        "| ½ log λ | paper | test error, mean / stochastic | epochs | seconds |",
        "|---" * 13 + "|",
    ]
    for key, found in rows.items():
        name, _, method = key.partition(":")
        c = found["certificate"]
        paper = [f"{value:g}" for value in found["paper"]] if found["paper"] else ["–"] * 4
        rho = ", ".join(f"{value:.3f}" for value in found["rho"])
        errors = c["orientation"]
        tests = f"{errors['mean_test']:.4f} / {errors['stochastic_test']:.4f}"
        lines.append(
            f"| {name} | {method} | **{c['bound']:.4f}** | {paper[0]} | {c['kl']:.0f} | {paper[1]} "
            f"| {c['error_bound']:.4f} | {paper[2]} | {rho} | {paper[3]} | {tests} "
            f"| {c['method']['epochs']} | {found['seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def say(started: float, text: str) -> None:
    """A line with the time since the start."""
    print(f"[{time.monotonic() - started:6.1f} s] {text}", flush=True)


if __name__ == "__main__":
    main()
