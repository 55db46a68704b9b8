r"""FF §4, fig. 3, and PP table 1: one hidden layer of 100 units on MNIST.

    python reproductions/flatness/mlp.py --root DATA --out reproductions/flatness/mlp.json

50 epochs of SGD with momentum 0.9 and the linear schedule; learning rate 0.01 (PP; FF have "an
identical schedule"), weight decay 0, 1e-4, 5e-4. FF report accuracies of 94.4 and 96.7 per cent
without and with weight decay, and PP the columns below, sums divided by the number of parameters.
Both count 9960 of them, where 784-100-10 has 79,510 (spec K.10): with theirs the means would be
eight times ours. Compare the order of the runs. About a minute of training and a few for the
curvature on two cores; ``--curvature-samples 10000`` shortens the latter.
"""

from __future__ import annotations

import runs

from curvescope.sharpness import compare_reports

PAPER = {  # ΔE in per cent, ΔL, tr H / P, tr H² / P, λ_max, validation accuracy
    "weight decay 0": (0.48, 0.024, 1.82e-2, 1.20e-1, 14.4, 94.4),
    "weight decay 0.0001": (0.51, 0.022, 1.67e-2, 1.04e-1, 15.0, 96.46),
    "weight decay 0.0005": (-0.05, 0.007, 1.76e-2, 1.63e-1, 17.8, 96.7),
}


def main() -> None:
    """Train, measure, print, write."""
    parser = runs.options(__doc__, epochs=50)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    train, test = runs.splits("mnist", args, train=45_000, held_out=5_000)
    recipes = runs.by_decay(args, lr=args.lr)
    finished = runs.train_all("F-100", recipes, train, test, args)
    reports = {
        f.name: runs.report(f, train, test, args, tol=1e-2, probes=16, steps=16) for f in finished
    }
    rows = [
        [
            name, PAPER[name][4], r.hessian.largest.value, PAPER[name][2],
            r.hessian.mean_eigenvalue.value, PAPER[name][3], r.hessian.mean_square.value,
            PAPER[name][5], 100 * (1 - r.test.error.value), PAPER[name][1], r.loss_gap.value,
            r.weights.norm,
        ]
        for name, r in reports.items()
    ]  # fmt: skip
    runs.print_table(
        ["run", "λ_max PP", "ours", "tr H / P PP", "ours", "tr H² / P PP", "ours", "val. acc. FF",
         "ours", "ΔL PP", "ours", "‖w‖"], rows,
    )  # fmt: skip
    compared = compare_reports(reports)
    runs.print_findings(compared)
    runs.save(
        args, paper=PAPER, reports={name: r.to_dict() for name, r in reports.items()},
        comparison=compared,
    )  # fmt: skip


if __name__ == "__main__":
    main()
