r"""PP fig. 2: the trace survives sub-sampling, tr H² does not.

    python reproductions/practical-bound/subsampling.py --root DATA \
        --out reproductions/practical-bound/subsampling.json

H and G of a network on all samples and on random batches of several sizes, B = 128 (PP's) among
them, before and after training; beside them E tr A_B² by the formula with its one fitted number.
Default: the MLP with 100 hidden units on 10,000 digits, a few minutes on two cores.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "flatness"))
import runs

from curvescope.sharpness import subsampling_study
from curvescope.training import Recipe, train

SIZES = (32, 128, 512, 2048)


def main() -> None:
    """Train piece by piece, measure, print, write."""
    parser = runs.options(__doc__, epochs=6)
    parser.add_argument("--network", default="F-100")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--probes", type=int, default=16)
    parser.set_defaults(samples=10_000)
    args = parser.parse_args()
    data, test = runs.splits(args.data, args)
    model = runs.fresh(args.network, data, args)
    studies, rows = [], []
    for epoch in (0, args.epochs // 3, args.epochs):
        trained = 0 if not studies else studies[-1]["epoch"]
        if epoch > trained:
            recipe = Recipe(seed=args.seed, epochs=epoch - trained, lr=0.03, momentum=0.9)
            train(model, data, recipe, test=test, tell=runs.Teller(args.network))
        for matrix in ("hessian", "ggn"):
            g = torch.Generator().manual_seed(args.seed)
            sizes = [size for size in SIZES if size < len(data)]
            study = subsampling_study(
                runs.problem(model.eval(), data, args), sizes, generator=g, matrix=matrix,
                repeats=args.repeats, probes=args.probes,
            )  # fmt: skip
            studies.append({"epoch": epoch, "study": study})
            for s in study.subsamples:
                rows.append([
                    epoch, matrix, s.size, s.trace.value / study.trace.value,
                    s.trace_spread / study.trace.value, s.square_sum.value / study.square_sum.value,
                    study.predicted_square_sum(s.size) / study.square_sum.value,
                ])  # fmt: skip
                runs.say(
                    f"epoch {epoch}, {matrix}, B = {s.size}: trace × {rows[-1][3]:.3f}, "
                    f"squares × {rows[-1][5]:.3f}"
                )
    header = [
        "epoch", "matrix", "B", "tr A_B / tr A", "spread of one batch", "tr A_B² / tr A²",
        "by the formula",
    ]  # fmt: skip
    runs.print_table(header, rows)
    runs.save(args, header=header, rows=rows, studies=studies)


if __name__ == "__main__":
    main()
