r"""PP §6, table 7: a trace penalty beside weight decay.

    python reproductions/practical-bound/regulariser.py --root DATA --device cuda \
        --out reproductions/practical-bound/regulariser.json

tr G with one probe per step (PP: WideResNet-28x10 on CIFAR-100, η = 1e-4, 80.75 ± 0.19 against
80.48 ± 0.26 per cent over four seeds). Here VGG16 with batch norm on CIFAR-10, or any other network
(``--network WideResNet-28x10``), and several η. Besides accuracies: tr G and λ_max of the
result, and the time of an epoch. On the CPU: ``--network F-100 --data mnist --epochs 10``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "flatness"))
import runs

from curvescope.sharpness import TraceRegulariser, compare_reports
from curvescope.training import Recipe


def main() -> None:
    """Train, measure, print, write."""
    parser = runs.options(__doc__, epochs=20, device="cuda")
    parser.add_argument("--network", default="VGG16-BN")
    parser.add_argument("--data", default="cifar-10")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--decay", type=float, default=5e-4)
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 1e-4, 1e-3, 1e-2])
    parser.add_argument("--kind", default="ggn", choices=["ggn", "hessian"])
    parser.set_defaults(curvature_samples=2048)
    args = parser.parse_args()
    train, test = runs.splits(args.data, args)
    recipe = Recipe(
        seed=args.seed, epochs=args.epochs, lr=args.lr, batch_size=128, momentum=0.9,
        weight_decay=args.decay, schedule="linear",
    )  # fmt: skip
    recipes = {f"η = {weight:g}": recipe for weight in args.weights}
    penalties = {
        f"η = {weight:g}": TraceRegulariser(
            args.kind, weight=weight, generator=torch.Generator().manual_seed(args.seed)
        )
        for weight in args.weights
        if weight > 0
    }
    finished = runs.train_all(args.network, recipes, train, test, args, penalties=penalties)
    reports = {
        f.name: runs.report(f, train, test, args, tol=1e-2, probes=8, steps=8) for f in finished
    }
    rows = [
        [
            f.name, 100 * f.trained.train.accuracy, 100 * f.trained.test.accuracy,
            f.trained.test.loss - f.trained.train.loss, reports[f.name].gauss_newton.trace.value,
            reports[f.name].hessian.largest.value, reports[f.name].weights.norm,
            f.trained.seconds / args.epochs,
        ]
        for f in finished
    ]  # fmt: skip
    header = [
        "run", "training accuracy", "test accuracy", "loss gap", "tr G", "λ_max(H)", "‖w‖",
        "seconds an epoch",
    ]  # fmt: skip
    runs.print_table(header, rows)
    compared = compare_reports(reports) if len(reports) > 1 else None
    runs.save(
        args, header=header, rows=rows, reports={n: r.to_dict() for n, r in reports.items()},
        comparison=compared,
    )  # fmt: skip


if __name__ == "__main__":
    main()
