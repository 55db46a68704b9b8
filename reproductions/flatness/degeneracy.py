r"""FF §3.2 and app. D: the mass of the spectrum at zero along training, beside the rank bound.

    python reproductions/flatness/degeneracy.py --root DATA \
        --out reproductions/flatness/degeneracy.json

100 Lanczos steps for H and G after every few epochs (FF: VGG-16 on CIFAR-10, where the bound puts
96.39 per cent at zero and the measured mass stays above it but for split peaks). Default: LeNet5 on
CIFAR-10, 5,000 samples, on the CPU in a few minutes; ``--network VGG16 --device cuda`` for FF's.
"""

from __future__ import annotations

from collections.abc import Iterator

import runs
import torch

from curvescope.problem import Problem
from curvescope.sharpness import rank_history
from curvescope.training import Recipe, train


def main() -> None:
    """Train piece by piece, measure, print, write."""
    parser = runs.options(__doc__, epochs=12)
    parser.add_argument("--network", default="LeNet5")
    parser.add_argument("--points", type=int, default=4)
    parser.set_defaults(samples=5000, curvature_samples=1000)
    args = parser.parse_args()
    data, test = runs.splits("cifar-10", args)
    model = runs.fresh(args.network, data, args)

    def points() -> Iterator[tuple[float, Problem]]:
        yield 0, runs.problem(model.eval(), data, args)
        each = max(1, args.epochs // args.points)
        for i in range(args.points):
            recipe = Recipe(seed=args.seed + i, epochs=each, lr=0.05, momentum=0.9)
            train(model, data, recipe, test=test, tell=runs.Teller(args.network))
            yield (i + 1) * each, runs.problem(model, data, args)

    g = torch.Generator().manual_seed(args.seed)
    history = rank_history(points(), generator=g, steps=100)
    rows = [
        [
            p.epoch, p.loss, p.gauss_newton.nearest.value, p.gauss_newton.nearest_value,
            p.hessian.nearest.value, p.hessian.pair.value, p.hessian.pair_value,
        ]
        for p in history.points
    ]  # fmt: skip
    runs.print_table(["epoch", "loss", "G: mass", "at", "H: mass", "H: two nearest", "at"], rows)
    runs.say(
        f"{history.parameters:,} parameters, bound of the rank {history.bound:,}: at least "
        f"{history.predicted:.4f} at zero by FF's bound"
    )
    runs.save(args, history=history)


if __name__ == "__main__":
    main()
