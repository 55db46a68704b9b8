"""One layer of several networks: eigenpairs, factors, and how they compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from curvescope.operators.hessian import Hessian
from curvescope.spectra.eigensolver import EigenPairs
from curvescope.structure.autocorrelation import AutocorrelationStructure, autocorrelation_structure
from curvescope.structure.correspondences import correspondence, singular_structure
from curvescope.structure.factors import KroneckerFactors, kronecker_factors
from curvescope.structure.layer_pairs import layer_eigenpairs
from curvescope.structure.overlaps import PairwiseOverlap, overlap, pairwise_overlap
from curvescope.structure.prediction import overlap_prediction
from curvescope.studies.dissecting_hessian.families import Group
from curvescope.studies.entry import Settings

CORNER = 40
"""Rows of a correspondence matrix that are kept."""
VERDICTS = ("peak at m", "early peak", "delayed peak", "flat up to m")


@dataclass(frozen=True)
class LayerStudy:
    """What was found for one layer, models first; correspondences are those of the first model."""

    layer: str
    true: Tensor  # [models, k], eigenvalues of the layer's Hessian
    approximate: Tensor  # [models, k], of the Kronecker product
    overlap: Tensor  # [models, k], of the two eigenspaces
    ratio: Tensor  # [models, k], ‖Mat(h)‖ / ‖Mat(h)‖_F
    between: PairwiseOverlap  # of the models' eigenspaces
    predicted: Tensor  # [pairs, K], expected from the factors
    predicted_peak: Tensor  # [pairs]
    verdict: str  # of the first pair
    outputs: Tensor  # [models, m], eigenvalues of E[M]
    inputs: Tensor  # [models, n], of E[x xᵀ]
    structures: tuple[AutocorrelationStructure, ...]
    correspondences: Mapping[str, Tensor]  # "true input", … -> [≤ CORNER, k]

    @property
    def m(self) -> int:
        """The number of outputs of the layer."""
        return self.outputs.shape[1]


def layer_study(
    settings: Settings,
    key: str,
    group: Group,
    layer: str,
    k: int,
    *,
    models: Sequence[nn.Module] | None = None,
) -> LayerStudy:
    """Compare a layer's Hessian with its factors, and the models with each other.

    Args:
        settings: Where finished parts are kept.
        key: Names the group (and the models, where they are not the trained ones).
        group: The networks and their data.
        layer: The name of the layer.
        k: Eigenpairs, at most as many as the layer has weights.
        models: Other networks than the trained ones.
    """
    chosen = group.models if models is None else models

    def compute() -> Mapping[str, Tensor]:
        settings.tell(f"{group.family.network}: {layer}, {k} eigenpairs of {len(chosen)} networks")
        last = layer == [name for name, _ in chosen[0].named_children()][-1]
        return _compute(settings, group, layer, k, chosen, last)

    return _read(layer, settings.once(f"dissecting-hessian/{key}-{layer}", compute))


def _compute(
    settings: Settings,
    group: Group,
    layer: str,
    k: int,
    models: Sequence[nn.Module],
    last: bool,
) -> dict[str, Tensor]:
    factors, vectors, rows = [], [], []
    found: dict[str, Tensor] = {}
    for place, model in enumerate(models):
        problem = group.problem(model)  # its stored factors go when the next one comes
        own = kronecker_factors(problem, layers=[layer])[layer]
        m, n = len(own.output_hessian), len(own.autocorrelation)
        pairs = layer_eigenpairs(
            Hessian(problem).block(f"{layer}.weight"),
            min(k, m * n),
            tol=1e-3,
            generator=settings.generator(place),
        )
        guess = own.operator().top(min(k, m * n))
        if place == 0:
            found = patterns(own, {"true": pairs.vectors, "approximate": guess.vectors})
        rows.append(_one_model(own, pairs, guess.values, overlap(pairs, guess)))
        factors.append(own)
        vectors.append(pairs.vectors)
    found |= {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return found | _pairs_of_models(vectors, factors, last)


def _one_model(
    factors: KroneckerFactors, pairs: EigenPairs, approximate: Tensor, share: Tensor
) -> dict[str, Tensor]:
    structure = autocorrelation_structure(factors)
    numbers = (structure.alignment, structure.spectral_ratio, structure.dominance)
    return {
        "true": pairs.values.double().cpu(),
        "approximate": approximate.double().cpu(),
        "overlap": share.cpu(),
        "ratio": singular_structure(pairs, len(factors.output_hessian)).ratio.double().cpu(),
        "outputs": torch.linalg.eigvalsh(factors.output_hessian.double().cpu()).flip(0),
        "inputs": structure.eigenvalues.double().cpu(),
        "structure": torch.tensor(numbers, dtype=torch.float64),
        "residual": (pairs.residuals / pairs.values).max().double().cpu(),
    }


def _pairs_of_models(
    vectors: Sequence[Tensor], factors: Sequence[KroneckerFactors], last: bool
) -> dict[str, Tensor]:
    predictions = [overlap_prediction(a, b, output_layer=last) for a, b in combinations(factors, 2)]
    size = min(len(p.curve) for p in predictions)
    return {
        "between": pairwise_overlap(list(vectors)).curves.cpu(),
        "predicted": torch.stack([p.curve[:size] for p in predictions]),
        "predicted peak": torch.tensor([p.peak for p in predictions]),
        "verdict": torch.tensor(VERDICTS.index(predictions[0].verdict)),
    }


def patterns(factors: KroneckerFactors, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Corners of the correspondence matrices (DH def. 4.3).

    They are ``[≤ CORNER, k]`` and named ``"true input"``, ``"true output"`` and so on.

    Args:
        factors: Of the layer.
        vectors: Eigenvectors of the layer by name, one in each column.
    """
    found = {}
    sides = {"input": factors.autocorrelation, "output": factors.output_hessian}
    for side, matrix in sides.items():
        basis = torch.linalg.eigh(matrix.double())[1].flip(1)[:, :CORNER]
        for name, columns in vectors.items():
            pattern = correspondence(columns, basis.to(columns), side=side).matrix
            found[f"{name} {side}"] = pattern.float().cpu()
    return found


def _read(layer: str, found: Mapping[str, Tensor]) -> LayerStudy:
    tensors = {name: tensor.cpu() for name, tensor in found.items()}
    numbers = zip(tensors["structure"].tolist(), tensors["inputs"], strict=True)
    return LayerStudy(
        layer=layer,
        true=tensors["true"],
        approximate=tensors["approximate"],
        overlap=tensors["overlap"],
        ratio=tensors["ratio"],
        between=PairwiseOverlap(tensors["between"]),
        predicted=tensors["predicted"],
        predicted_peak=tensors["predicted peak"],
        verdict=VERDICTS[int(tensors["verdict"])],
        outputs=tensors["outputs"],
        inputs=tensors["inputs"],
        structures=tuple(
            AutocorrelationStructure(layer, alignment, ratio, dominance, eigenvalues)
            for (alignment, ratio, dominance), eigenvalues in numbers
        ),
        correspondences={
            name: tensor for name, tensor in tensors.items() if name.endswith((" input", " output"))
        },
    )


def layer_studies(
    settings: Settings, key: str, group: Group, layers: Mapping[str, int]
) -> dict[str, LayerStudy]:
    """The studies of several layers, each with so many eigenpairs."""
    return {layer: layer_study(settings, key, group, layer, k) for layer, k in layers.items()}
