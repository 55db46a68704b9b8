"""Each kind of layer of a language model beside its Kronecker product.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
    Eschenhagen, Immer, Turner, Schneider and Hennig (2023), *Kronecker-Factored Approximate
    Curvature for Modern Neural Network Architectures*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from curvescope.data import Dataset
from curvescope.figures.model import Image, Panel, Picture
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.record.selection import layer_of
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.structure.autocorrelation import autocorrelation_structure
from curvescope.structure.correspondences import correspondence, singular_structure
from curvescope.structure.factors import KroneckerFactors, kronecker_factors
from curvescope.structure.layer_pairs import layer_eigenpairs
from curvescope.structure.overlaps import overlap
from curvescope.studies.language.subjects import (
    Point,
    Subject,
    kind,
    language_problem,
    signs,
    subject,
    top,
)
from curvescope.studies.pictures import curves
from curvescope.studies.run import Result, Run, Value

SHARING = ("expand", "reduce")
_PARTS = ("output_hessian", "autocorrelation", "mean_input")
_AFTER_NORM = ("q", "k", "v", "up", "head")
Found = dict[str, Mapping[str, Tensor]]


def run(run: Run) -> Result:
    """Every layer at the start, in the middle and at the end of the training."""
    of = subject(run)
    values: dict[str, float | Value] = {}
    numbers: dict[str, Any] = {}
    every: dict[str, Found] = {}
    for point in of.points:
        found: Found = {name: cpu(each) for name, each in _found(run, of, point).items()}
        largest = max(float(each["G values"][0]) for each in found.values())
        whole = float(top(run, of, point, "G").values[0])
        values[f"{point.name}: largest λ₁ of a block of G over that of G"] = largest / whole
        values |= _values(point.name, found)
        numbers[point.name] = {name: _numbers(each) for name, each in found.items()}
        every[point.name] = found
    return Result(values, _pictures(every), numbers)


def _values(at: str, found: Found) -> dict[str, float | Value]:
    matrices = [each for name, each in found.items() if kind(name) != "norms"]
    k = len(next(iter(found.values()))["G values"])

    def median(numbers: Iterable[float]) -> Value:
        sample = torch.tensor(list(numbers), dtype=torch.float64)
        return Value(
            float(sample.quantile(0.5)), f"{float(sample.min()):.3g} … {float(sample.max()):.3g}"
        )

    values: dict[str, float | Value] = {
        f"{at}: ‖Mat(h)‖/‖Mat(h)‖_F, {name}, median over matrices": median(
            float(each[key].mean()) for each in matrices
        )
        for name, key in {"G": "rank one", "H": "rank one, H"}.items()
    }
    for sharing in SHARING:
        product = f"the {sharing}{'ed' if sharing == 'expand' else 'd'} product"
        values[f"{at}: cosine of G and {product}, median over layers"] = median(
            cosine(each, sharing) for each in found.values()
        )
        values[f"{at}: overlap of the top {k} of G and {product}, median over layers"] = median(
            float(each[f"{sharing} overlap"][-1]) for each in found.values()
        )
        values[f"{at}: λ₁ of G over that of {product}, median over layers"] = median(
            float(each["G values"][0] / each[f"{sharing} values"][0]) for each in found.values()
        )
    closer = [cosine(each, "expand") > cosine(each, "reduce") for each in found.values()]
    values[f"{at}: share of layers that the expanded product is closer to"] = Value(
        sum(closer) / len(closer), f"{sum(closer)} of {len(closer)}"
    )
    values[f"{at}: overlap of the top {k} of H and G, median over layers"] = median(
        float(each["H overlap"][-1]) for each in found.values()
    )
    values[f"{at}: λ₁/λ₂ of E[x xᵀ] behind layer norms, median"] = median(
        float(each["autocorrelation"][0])
        for name, each in found.items()
        if kind(name) in _AFTER_NORM
    )
    return values


def cosine(each: Mapping[str, Tensor], sharing: str) -> float:
    """``⟨G, K⟩ / (‖G‖ ‖K‖)`` of a layer."""
    inner, norm = float(each[f"{sharing} inner"]), float(each[f"{sharing} norm"])
    return inner / (norm * float(each["norm of G"]))


def cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the host."""
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _numbers(each: Mapping[str, Tensor]) -> dict[str, Any]:
    def shown(values: Tensor) -> list[float]:
        return [float(f"{float(value):.4g}") for value in values.flatten()]

    return {
        "eigenvalues of G": shown(each["G values"]),
        "eigenvalues of H": shown(each["H values"]),
        "‖Mat(h)‖/‖Mat(h)‖_F of G": shown(each["rank one"]),
        "‖Mat(h)‖/‖Mat(h)‖_F of H": shown(each["rank one, H"]),
        "overlap of H and G": shown(each["H overlap"]),
        "λ₁/λ₂ and (v₁·Ê[x])² of E[x xᵀ]": shown(each["autocorrelation"]),
        **{
            sharing: {
                "cosine": round(cosine(each, sharing), 4),
                "best multiple": float(
                    f"{float(each[f'{sharing} inner'] / each[f'{sharing} norm'] ** 2):.4g}"
                ),
                "eigenvalues": shown(each[f"{sharing} values"]),
                "overlap": shown(each[f"{sharing} overlap"]),
                "best correspondence, inputs": shown(each[f"{sharing} correspondence"][0]),
                "best correspondence, outputs": shown(each[f"{sharing} correspondence"][1]),
            }
            for sharing in SHARING
        },
    }


def _pictures(every: Mapping[str, Found]) -> tuple[Picture, ...]:
    names = tuple(next(iter(every.values())))
    points = tuple(every)

    def table(label: str, of: Callable[[Mapping[str, Tensor]], float]) -> Panel:
        numbers = torch.tensor([[of(found[name]) for found in every.values()] for name in names])
        image = Image.of(numbers, low=0.0, high=1.0, rows=names, columns=points)
        return Panel(title=label, image=image)

    summary = (
        table("expand: cosine with G", lambda each: cosine(each, "expand")),
        table("reduce: cosine with G", lambda each: cosine(each, "reduce")),
        table("H and G: overlap", lambda each: float(each["H overlap"][-1])),
        table("expand: overlap with G", lambda each: float(each["expand overlap"][-1])),
        table("reduce: overlap with G", lambda each: float(each["reduce overlap"][-1])),
        table("‖Mat(h)‖/‖Mat(h)‖_F, G", lambda each: float(each["rank one"].mean())),
    )
    last = every[points[-1]]
    spectra = tuple(
        curves(
            name, "index", "eigenvalue",
            {
                "G": each["G values"],
                "H": each["H values"],
                "expand": each["expand values"],
                "reduce": each["reduce values"],
            },
            yscale="log",
        )
        for name, each in last.items()
    )  # fmt: skip
    return (
        Picture("layers", _LAYERS, summary, columns=3),
        Picture("eigenvalues", _VALUES, spectra, columns=4),
    )


_LAYERS = (
    "Each layer's block of G beside its Kronecker products, and beside the block of H: the cosine "
    "of the matrices, the overlap of their top eigenspaces, and how near the top eigenvectors of G "
    "are to rank one."
)
_VALUES = "The top eigenvalues of each layer's blocks and Kronecker products at the end."


def _found(run: Run, of: Subject, point: Point) -> dict[str, Mapping[str, Tensor]]:
    """Every layer's comparison."""
    names = tuple(run["layers"])
    run.tell(f"{point.name}: Kronecker factors")
    factors = _read(
        run.once(
            f"gpt-{point.name}-factors",
            partial(_factors, point.model, of.few, names, run["draws"], run.generator(31)),
        ),
        point.model,
        names,
    )
    found = {}
    for name in names:
        run.tell(f"{point.name}: {name}")
        compute = partial(
            _compare, name, factors[name], point.model, of.few, run["k"], run["tolerance"],
            run["signs"], run.generator(32),
        )  # fmt: skip
        found[name] = run.once(f"gpt-{point.name}-layer-{name}", compute)
    return found


def _factors(
    model: nn.Module, few: Dataset, names: tuple[str, ...], draws: int, generator: torch.Generator
) -> Mapping[str, Tensor]:
    """The factors of the layers in both conventions, from the same drawn labels."""
    problem = language_problem(model, few)
    state = generator.get_state()
    found = {}
    for sharing in SHARING:
        generator.set_state(state)
        found[sharing] = kronecker_factors(
            problem, layers=names, sharing=sharing, draws=draws, generator=generator
        )
    return {
        f"{sharing} {name} {part}": getattr(each, part)
        for sharing, factors in found.items()
        for name, each in factors.items()
        for part in _PARTS
    }


def _read(
    tensors: Mapping[str, Tensor], model: nn.Module, names: tuple[str, ...]
) -> dict[str, dict[str, KroneckerFactors]]:
    """The factors that :func:`_factors` gave, by layer and convention."""

    def of(name: str, sharing: str) -> KroneckerFactors:
        M, A, mean = (tensors[f"{sharing} {name} {part}"].cpu() for part in _PARTS)
        transposed = layer_of(model, name).transposed
        return KroneckerFactors(
            name, M, A, mean, bias=False, transposed=transposed, sharing=sharing
        )

    return {name: {sharing: of(name, sharing) for sharing in SHARING} for name in names}


def _compare(
    name: str,
    factors: Mapping[str, KroneckerFactors],
    model: nn.Module,
    few: Dataset,
    k: int,
    tol: float,
    probes: int,
    generator: torch.Generator,
) -> Mapping[str, Tensor]:
    """One layer's blocks of G and H beside its Kronecker products.

    ``⟨G, K⟩ = tr(Qᵀ G K Q) + tr((I − QQᵀ) G K)`` with the top eigenvectors of all as ``Q``; the
    rest is sampled. Likewise the squared norms.
    """
    problem = language_problem(model, few).restrict(f"{name}.weight")
    G, H = GaussNewton(problem, keep=True), Hessian(problem, keep=True)
    k = min(k, G.shape[0] // 4)
    pairs = layer_eigenpairs(G, k, tol=tol, generator=generator)
    full = eigenpairs(H, k, tol=tol, generator=generator)
    found = {"G values": pairs.values, "H values": full.values}
    found["H overlap"] = overlap(full, pairs)
    some = factors[SHARING[0]]
    outputs = len(some.output_hessian)
    by_outputs = some.by_outputs(pairs.vectors)
    found["rank one"] = singular_structure(by_outputs, outputs).ratio
    found["rank one, H"] = singular_structure(some.by_outputs(full.vectors), outputs).ratio
    products = {sharing: each.operator() for sharing, each in factors.items()}
    guesses = {sharing: K.top(k) for sharing, K in products.items()}
    Q = torch.linalg.qr(torch.cat([pairs.vectors, *(g.vectors for g in guesses.values())], 1)).Q
    rest = signs(G, probes, generator)
    rest -= Q @ (Q.T @ rest)
    images = G @ torch.cat([Q, rest], 1)
    inside, outside = images[:, : Q.shape[1]].double(), images[:, Q.shape[1] :].double()
    squares = inside.square().sum() + outside.square().sum(0).mean()
    found["norm of G"] = squares.sqrt()
    for sharing, K in products.items():
        each, guess = factors[sharing], guesses[sharing]
        inner = (inside * (K @ Q)).sum() + (outside * (K @ rest)).sum(0).mean()
        sides = (each.output_hessian, each.autocorrelation)
        norm = torch.stack([side.double().norm() for side in sides]).prod()
        found[f"{sharing} norm"], found[f"{sharing} inner"] = norm, inner
        found[f"{sharing} values"] = guess.values
        found[f"{sharing} overlap"] = overlap(pairs, guess)
        found[f"{sharing} correspondence"] = _best(each, by_outputs)
    structure = autocorrelation_structure(some)
    found["autocorrelation"] = torch.tensor([structure.spectral_ratio, structure.alignment])
    return found


def _best(factors: KroneckerFactors, vectors: Tensor) -> Tensor:
    """How much of each eigenvector the best eigenvector of each factor explains: ``[2, k]``."""
    rows = []
    for side in ("input", "output"):
        basis = factors.eigen(side).first(10**6).to(vectors)
        rows.append(correspondence(vectors, basis, side=side).matrix.amax(0))
    return torch.stack(rows)
