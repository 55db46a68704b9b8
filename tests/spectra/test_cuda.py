"""The same numbers on a GPU; generators on either side."""

from __future__ import annotations

import pytest
import torch

from curvescope.operators.simple import Dense
from curvescope.spectra import (
    Status,
    diagonal,
    eigenpairs,
    frobenius,
    kpm,
    lanczos,
    logdet,
    spectral_measure,
    subspace_iteration,
    trace,
)
from tests.spectra.matrices import F64, hessian_like, rotated, seeded

pytestmark = pytest.mark.gpu


def both() -> tuple[Dense, Dense]:
    A = rotated(hessian_like(300))
    return A, Dense(A.dense().cuda(), symmetric=True)


def test_a_cpu_generator_gives_the_cpu_s_numbers() -> None:
    host, device = both()
    for block in (1, 4):
        a = eigenpairs(host, 8, block=block, generator=seeded())
        b = eigenpairs(device, 8, block=block, generator=seeded())
        assert b.vectors.is_cuda
        assert a.products == b.products
        torch.testing.assert_close(b.values.cpu(), a.values, atol=1e-9, rtol=0)
    x = spectral_measure(host, steps=30, probes=3, generator=seeded())
    y = spectral_measure(device, steps=30, probes=3, generator=seeded())
    torch.testing.assert_close(y.nodes, x.nodes, atol=1e-8, rtol=0)
    for run in (
        lambda A: trace(A, generator=seeded()).value,
        lambda A: trace(A, method="xtrace", generator=seeded()).value,
        lambda A: frobenius(A, generator=seeded()).value,
        lambda A: frobenius(A, method="hutch++", generator=seeded()).value,
        lambda A: float(diagonal(A, generator=seeded()).value[3]),
        lambda A: logdet(A, damping=5.0, steps=20, probes=3, generator=seeded()).value,
        lambda A: float(kpm(A, degree=20, generator=seeded()).moments[0, 7]),
        lambda A: float(subspace_iteration(A, 3, iterations=9, generator=seeded()).values[1]),
    ):
        assert run(device) == pytest.approx(run(host), rel=1e-8)


def test_a_cuda_generator_works_and_repeats() -> None:
    _, device = both()
    first = eigenpairs(device, 5, generator=torch.Generator("cuda").manual_seed(3))
    again = eigenpairs(device, 5, generator=torch.Generator("cuda").manual_seed(3))
    assert torch.equal(first.values, again.values)
    torch.testing.assert_close(first.values.cpu(), hessian_like(300)[:5], atol=1e-6, rtol=0)


def test_breakdown_without_a_look_from_the_host() -> None:
    A = Dense(rotated(torch.tensor([1.0, 2.0, 3.0], dtype=F64).repeat(20)).dense().cuda())
    T = lanczos(A, 30, generator=seeded())
    assert T.status is Status.BREAKDOWN
    assert len(T.alphas) == 3
    assert T.products == 30


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_recurrence_never_waits_for_the_device() -> None:
    """Between the first and the last step no value is read back."""
    from curvescope.spectra.recurrence import Recurrence

    _, device = both()
    rows = device.domain.random(2, generator=seeded())
    for reorthogonalize in (True, False):
        run = Recurrence(device, rows, 12, reorthogonalize=reorthogonalize)
        run.step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(10):
                run.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_checkpoint_moves_to_the_device(tmp_path) -> None:  # type: ignore[no-untyped-def]
    _, device = both()
    path = tmp_path / "state"
    whole = eigenpairs(device, 6, generator=seeded())
    cut = eigenpairs(device, 6, max_products=9, generator=seeded(), checkpoint=path, every=1)
    assert cut.status is Status.BUDGET
    resumed = eigenpairs(device, 6, generator=seeded(), checkpoint=path)
    assert resumed.products == whole.products
    torch.testing.assert_close(resumed.values, whole.values, atol=1e-12, rtol=0)
