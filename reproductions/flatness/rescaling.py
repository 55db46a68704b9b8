r"""FF §2, PP §3 (Dinh et al. 2017): two layers rescaled by α and 1/α.

    python reproductions/flatness/rescaling.py --root DATA \
        --out reproductions/flatness/rescaling.json

The loss stays within rounding, the blocks of the two layers change by α⁻² and α², and λ_max of the
whole Hessian follows ``D H D`` of the original one. F-200² on MNIST and LeNet5 on CIFAR-10, trained
for a few epochs, in float64. About a minute on two cores; then FF's example in closed form.
"""

from __future__ import annotations

import argparse

import runs
import torch

from curvescope.operators.base import LinearOperator
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.sharpness import DeepLinear, rescale
from curvescope.spectra import eigenpairs
from curvescope.training import Recipe

CASES = (("mnist", "F-200^2", "fc1", "fc2"), ("cifar-10", "LeNet5", "conv1", "conv2"))
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)


def largest(A: LinearOperator) -> float:
    """λ_max to seven digits."""
    g = torch.Generator().manual_seed(0)
    return float(eigenpairs(A, 1, tol=1e-7, overlook=1.0, generator=g).values[0])


def measured(
    name: str, what: str, first: str, second: str, args: argparse.Namespace
) -> list[list[object]]:
    """One row for every factor."""
    train, test = runs.splits(name, args)
    recipe = Recipe(seed=0, epochs=args.epochs, lr=0.05, momentum=0.9)
    (finished,) = runs.train_all(what, {what: recipe}, train, test, args)
    few = runs.part(train, torch.arange(args.curvature_samples))
    problem = Problem(finished.model.double(), (few.X.double(), few.y))
    H, value = Hessian(problem), float(problem.value())
    before = {layer: largest(H.block(f"{layer}.weight")) for layer in (first, second)}
    rows: list[list[object]] = []
    for alpha in FACTORS:
        after = rescale(problem, first, second, alpha)
        new = Hessian(after.problem)
        blocks = {layer: largest(new.block(f"{layer}.weight")) / before[layer] for layer in before}
        predicted = largest(after.predicted(H))
        rows.append([
            what, alpha, abs(float(after.problem.value()) - value) / value, after.shift,
            after.block_factor(f"{first}.weight"), blocks[first],
            after.block_factor(f"{second}.weight"), blocks[second], predicted, largest(new),
        ])  # fmt: skip
        runs.say(f"{what}, α = {alpha:g}: λ_max {rows[-1][-1]:.6g}, predicted {predicted:.6g}")
    return rows


def main() -> None:
    """Train, rescale, print, write."""
    parser = runs.options(__doc__, epochs=2)
    parser.set_defaults(samples=10_000, curvature_samples=500)
    args = parser.parse_args()
    rows = [row for case in CASES for row in measured(*case, args)]
    header = [
        "network", "α", "change of the loss", "of the outputs", "first block, predicted",
        "measured", "second block, predicted", "measured", "λ_max, predicted", "measured",
    ]  # fmt: skip
    runs.print_table(header, rows)
    at = DeepLinear((1.0, 2.0, 1.5), -1.0)
    chain = [
        [alpha, moved.loss, moved.trace, float(torch.linalg.eigvalsh(moved.hessian)[-1])]
        for alpha in FACTORS
        for moved in [at.rescaled(1, 2, alpha)]
    ]
    runs.say("FF's example, w = (1, 2, 1.5), X = −1, second weight times α, third by α:")
    runs.print_table(["α", "loss", "tr H = λ_max(G)", "λ_max(H)"], chain)
    runs.save(args, header=header, rows=rows, chain=chain)


if __name__ == "__main__":
    main()
