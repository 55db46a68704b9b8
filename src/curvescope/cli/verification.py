"""The check of a certificate, claim by claim."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import typer
from rich.console import Console

from curvescope.certificates import Certificate, Progress, Verification
from curvescope.certificates.divergence import decimal_upwards
from curvescope.cli.inputs import Subject


def check(
    certificate: Certificate,
    evidence: tuple[Subject, Path] | None,
    device: torch.device,
    *,
    seed: int,
    progress: Callable[[Progress], None],
) -> Verification:
    """Check the claims of a certificate that the given inputs decide.

    Args:
        certificate: The certificate.
        evidence: The network with its data, and the file of its initial weights; without them only
            the file itself is checked.
        device: Where to draw.
        seed: Decides the fresh draws.
        progress: Called while drawing.
    """
    if evidence is None:
        return certificate.verify()
    subject, initial = evidence
    return certificate.verify(
        model=subject.model.to(device),
        initial_state=initial,
        data=subject.data.train,
        generator=torch.Generator().manual_seed(seed),
        progress=progress,
    )


def show(certificate: Certificate, result: Verification, *, as_json: bool) -> None:
    """Print the outcome; exit with 1 if the certificate is refuted."""
    if as_json:
        claims = [asdict(claim) for claim in result.checks]
        outcome = {"verdict": result.verdict, "statement": certificate.statement, "checks": claims}
        typer.echo(
            json.dumps(
                {**outcome, "unchecked": result.unchecked, "trusted": result.trusted}, indent=2
            )
        )
    else:
        _print(certificate, result, Console(highlight=False, soft_wrap=True))
    if result.verdict == "refuted":
        raise typer.Exit(1)


def _print(certificate: Certificate, result: Verification, console: Console) -> None:
    for claim in result.checks:
        mark = "[green]holds[/green]" if claim.passed else "[red]fails[/red]"
        console.print(mark, end=" ")
        console.print(f" {claim.what}: {claim.detail}", markup=False)
    for missing in result.unchecked:
        console.print("[yellow]not checked[/yellow]", end=" ")
        console.print(f" {missing}", markup=False)
    for word in result.trusted:
        console.print(f"taken on trust  {word}", markup=False)
    if result.passed:
        console.print(certificate.statement, markup=False)
    verdict = {
        "verified": "[green]verified[/green]",
        "consistent": "[yellow]consistent, but not verified[/yellow]",
        "refuted": "[red]refuted[/red]",
    }[result.verdict]
    console.print(f"bound {decimal_upwards(certificate.bound, 4)}: {verdict}")
