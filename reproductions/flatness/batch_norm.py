r"""FF §4: weight decay and sharpness of a convolutional network, batch norm in both modes.

    python reproductions/flatness/batch_norm.py --root DATA --device cuda \
        --out reproductions/flatness/vgg16-bn.json

VGG16 with batch norm on CIFAR-10 with weight decay 0, 1e-4, 5e-4 (FF: WideResNet-28x10 and others
on CIFAR-100), SGD with learning rate 0.05, momentum 0.9, linear schedule. ``--network All-CNN-C``
has no batch norm; both modes then agree. FF find the unregularised network flatter and worse, by a
factor of 30 in λ_max in train mode and of nearly 1000 in eval mode. Curvature on the first 2,048
training samples, in train mode in batches of 128. A few minutes on an H200.
"""

from __future__ import annotations

import runs

from curvescope.sharpness import SharpnessReport, compare_reports


def main() -> None:
    """Train, measure, print, write."""
    parser = runs.options(__doc__, epochs=30, device="cuda")
    parser.add_argument("--network", default="VGG16-BN", help="VGG16-BN or All-CNN-C")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.set_defaults(curvature_samples=2048)
    args = parser.parse_args()
    train, test = runs.splits("cifar-10", args)
    recipes = runs.by_decay(args, lr=args.lr)
    finished = runs.train_all(args.network, recipes, train, test, args)
    reports: dict[str, SharpnessReport] = {}
    for f in finished:
        for mode in ("eval", "train"):
            size = 128 if mode == "train" else 0
            reports[f"{f.name}, {mode}"] = runs.report(
                f, train, test, args, mode=mode, size=size, tol=1e-2, probes=8, steps=8
            )
            runs.save(args, reports={name: r.to_dict() for name, r in reports.items()})
    rows = [
        [
            name, r.hessian.largest.value, r.hessian.smallest.value,
            r.hessian.mean_eigenvalue.value, r.hessian.mean_square.value, r.weights.norm,
            r.train.loss.value, 100 * (1 - r.test.error.value), r.loss_gap.value,
        ]
        for name, r in reports.items()
    ]  # fmt: skip
    runs.print_table(
        ["run", "λ_max", "λ_min", "tr H / P", "tr H² / P", "‖w‖", "training loss", "test accuracy",
         "loss gap"], rows,
    )  # fmt: skip
    compared = compare_reports(reports)
    runs.print_findings(compared)
    runs.save(args, reports={name: r.to_dict() for name, r in reports.items()}, comparison=compared)


if __name__ == "__main__":
    main()
