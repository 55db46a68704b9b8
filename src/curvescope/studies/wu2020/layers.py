"""One layer of several networks: eigenpairs, Kronecker factors, and how the networks compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from curvescope.operators.hessian import Hessian
from curvescope.structure.factors import KroneckerFactors, kronecker_factors
from curvescope.structure.layer_comparison import LayerComparison, compare_layer
from curvescope.structure.layer_pairs import layer_eigenpairs
from curvescope.structure.overlaps import PairwiseOverlap, pairwise_overlap
from curvescope.structure.prediction import overlap_prediction
from curvescope.studies.networks import Group
from curvescope.studies.run import Run, Value

VERDICTS = ("peak at m", "early peak", "delayed peak", "flat up to m")


@dataclass(frozen=True)
class LayerStudy:
    """What :func:`layer_study` computed, by name: models, or pairs of them, come first.

    ``true``, ``approximate``, ``overlap``, ``ratio``: ``[models, k]`` as in
    :class:`LayerComparison`; ``outputs: [models, m]`` and ``inputs: [models, n]``, eigenvalues of
    the factors; ``structure: [models, 3]``, alignment, λ₁/λ₂, dominance; ``predicted: [pairs, K]``
    and ``predicted peak: [pairs]``. Of the first model: ``singular values: [k, r]``, ``verdict``
    and the correspondences ``true input``, ``approximate output`` and so on, ``[rows, k]``.
    """

    layer: str
    parts: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        """One of the parts."""
        return self.parts[name]

    @property
    def m(self) -> int:
        """The number of outputs of the layer."""
        return self["outputs"].shape[1]

    @property
    def between(self) -> PairwiseOverlap:
        """Overlap of the models' eigenspaces."""
        return PairwiseOverlap(self["between"])

    @property
    def verdict(self) -> str:
        """Where the factors of the first pair let expect the peak."""
        return VERDICTS[int(self["verdict"])]


def layer_study(
    run: Run, group: Group, layer: str, k: int, *, models: Sequence[nn.Module] = (), key: str = ""
) -> LayerStudy:
    """Compare a layer's Hessian with its factors, and the models with each other.

    Args:
        run: Where finished parts are kept.
        group: The networks and their data.
        layer: The name of the layer.
        k: Eigenpairs, at most as many as the layer has weights.
        models: Other networks than the trained ones.
        key: Names these.
    """
    chosen = tuple(models) or group.models

    def compute() -> dict[str, Tensor]:
        run.tell(f"{group.name}: {layer}, {k} eigenpairs of {len(chosen)} networks")
        last = layer == [name for name, _ in chosen[0].named_children()][-1]
        compared, vectors, factors = [], [], []
        for place, model in enumerate(chosen):
            problem = group.problem(model)  # its stored factors go when the next one comes
            own = kronecker_factors(problem, layers=[layer])[layer]
            block = Hessian(problem).block(f"{layer}.weight")
            count = min(k, block.shape[0])
            pairs = layer_eigenpairs(block, count, tol=1e-3, generator=run.generator(place))
            compared.append(compare_layer(own, pairs))
            vectors.append(pairs.vectors)
            factors.append(own)
        return _parts(compared) | _pairs(vectors, factors, last)

    name = group.key.partition("/")[2]
    parts = run.once(f"layer-{name}{key}-{layer}", compute)
    return LayerStudy(layer, {name: part.cpu() for name, part in parts.items()})


def layer_studies(run: Run, group: Group, layers: Mapping[str, int]) -> dict[str, LayerStudy]:
    """The studies of several layers, each with so many eigenpairs."""
    return {layer: layer_study(run, group, layer, k) for layer, k in layers.items()}


def _parts(compared: Sequence[LayerComparison]) -> dict[str, Tensor]:
    first = compared[0]
    structure = [[c.alignment, c.spectral_ratio, c.dominance] for c in compared]
    return {
        "true": torch.stack([c.true for c in compared]),
        "approximate": torch.stack([c.approximate for c in compared]),
        "overlap": torch.stack([c.overlap for c in compared]),
        "ratio": torch.stack([c.ratio for c in compared]),
        "outputs": torch.stack([c.output_eigenvalues for c in compared]),
        "inputs": torch.stack([c.input_eigenvalues for c in compared]),
        "structure": torch.tensor(structure, dtype=torch.float64),
        "singular values": first.singular_values,
        **first.correspondences,
    }


def _pairs(
    vectors: Sequence[Tensor], factors: Sequence[KroneckerFactors], last: bool
) -> dict[str, Tensor]:
    if len(vectors) < 2:
        return {}
    predictions = [overlap_prediction(a, b, output_layer=last) for a, b in combinations(factors, 2)]
    size = min(len(p.curve) for p in predictions)
    return {
        "between": pairwise_overlap(list(vectors)).curves,
        "predicted": torch.stack([p.curve[:size] for p in predictions]),
        "predicted peak": torch.tensor([p.peak for p in predictions]),
        "verdict": torch.tensor(VERDICTS.index(predictions[0].verdict)),
    }


# Numbers ------------------------------------------------------------------------------------------


def spread(values: Tensor | Sequence[float], of: str = "layers") -> Value:
    """The mean, with the range beside it.

    >>> spread([1.0, 2.0]).note
    '1 … 2 over 2 layers'
    """
    numbers = torch.as_tensor(values, dtype=torch.float64).flatten()
    low, high = float(numbers.min()), float(numbers.max())
    return Value(float(numbers.mean()), f"{low:.4g} … {high:.4g} over {len(numbers)} {of}")


def peak(study: LayerStudy, *, most: int | None = None) -> Value:
    """Where the overlap between models is largest, up to ``most``."""
    mean = study.between.mean[:most]
    place = int(mean.argmax())
    deviation = float(study.between.std[place])
    expected = float(study["predicted peak"].double().mean())
    return Value(
        place + 1,
        f"overlap {float(mean[place]):.2f} ± {deviation:.2f} there; expected from the factors at "
        f"{expected:.0f}",
    )


def flat(study: LayerStudy) -> Value:
    """The smallest over the largest overlap before ``m``: near 1 where it remains constant."""
    before = study.between.mean[: study.m - 1]
    low, high = float(before.min()), float(before.max())
    return Value(low / high, f"between {low:.2f} and {high:.2f} for k < {study.m}")


def summary(studies: Mapping[str, LayerStudy]) -> dict[str, Any]:
    """The numbers of each layer, as plain JSON."""
    return {name: _summary(study) for name, study in studies.items()}


def _summary(study: LayerStudy) -> dict[str, Any]:
    alignment, ratio, dominance = study["structure"].T.tolist()
    between = study.between
    return {
        "outputs": study.m,
        "models": len(study["true"]),
        "alignment": alignment,
        "spectral_ratio": ratio,
        "dominance": dominance,
        "peak": between.peak,
        "predicted_peaks": study["predicted peak"].tolist(),
        "verdict": study.verdict,
        "largest_eigenvalue": study["true"][:, 0].tolist(),
        "kronecker_over_true": (study["approximate"][:, 0] / study["true"][:, 0]).tolist(),
        "between_mean": _short(between.mean),
        "between_std": _short(between.std),
        "ratio_mean": _short(study["ratio"].mean(0)),
    }


def _short(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
