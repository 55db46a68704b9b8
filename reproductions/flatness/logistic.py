r"""FF §4, fig. 2: logistic regression on MNIST. Weight decay makes it sharper and better.

    python reproductions/flatness/logistic.py --root DATA --out reproductions/flatness/logistic.json

45,000 training and 5,000 validation digits, 7850 parameters, SGD with learning rate 0.03, momentum
0.9 and FF's linear schedule, 1000 epochs, weight decay 0, 1e-4, 5e-4. FF do not say how pixels are
normalised or how large a batch is. Here they go from −1 to 1 in batches of 128: with pixels in
[0, 1] the trace would be an eighth of theirs, with standardised ones λ_max about half. (Their
appendix has 50 epochs where the text has 1000: ``--epochs 50``.) About four minutes on two cores
for each weight decay.
"""

from __future__ import annotations

import runs

from curvescope.sharpness import compare_reports

PAPER = {  # λ_max, mean eigenvalue, validation accuracy
    "weight decay 0": (12.26, 0.0132, 93.48),
    "weight decay 0.0001": (14.17, 0.0153, 94.00),
    "weight decay 0.0005": (15.84, 0.0171, 94.08),
}


def main() -> None:
    """Train, measure, print, write."""
    args = runs.arguments(__doc__, epochs=1000)
    train, test = runs.splits("mnist", args, train=45_000, held_out=5_000)
    recipes = runs.by_decay(args, lr=0.03)
    finished = runs.train_all("logistic", recipes, train, test, args)
    reports = {f.name: runs.report(f, train, test, args, tol=1e-3) for f in finished}
    rows = []
    for name, r in reports.items():
        paper = PAPER[name]
        accuracy = 100 * (1 - r.test.error.value)
        rows.append([
            name, paper[0], r.hessian.largest.value, paper[1], r.hessian.mean_eigenvalue.value,
            paper[2], accuracy, r.weights.norm, r.train.loss.value, r.loss_gap.value,
        ])  # fmt: skip
    runs.print_table(
        ["run", "λ_max FF", "ours", "tr H / P FF", "ours", "val. acc. FF", "ours", "‖w‖",
         "training loss", "loss gap"], rows,
    )  # fmt: skip
    compared = compare_reports(reports)
    runs.print_findings(compared)
    runs.save(
        args, paper=PAPER, reports={name: r.to_dict() for name, r in reports.items()},
        comparison=compared,
    )  # fmt: skip


if __name__ == "__main__":
    main()
