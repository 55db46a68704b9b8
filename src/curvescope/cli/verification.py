"""The check of a certificate, claim by claim."""

from __future__ import annotations

import json
from dataclasses import asdict

import torch
import typer
from rich.console import Console

from curvescope.certificates import Certificate, Verification
from curvescope.cli.inputs import Subject


def check(
    certificate: Certificate,
    subject: Subject | None,
    device: torch.device,
    *,
    seed: int,
    as_json: bool,
) -> None:
    """Check a certificate and print the outcome; exit with 1 unless it is verified.

    Args:
        certificate: What is claimed.
        subject: The network and its data, for fresh draws; without them only the arithmetic.
        device: Where to draw.
        seed: Decides the draws.
        as_json: Print JSON instead of text.
    """
    result = certificate.verify(
        model=None if subject is None else subject.model.to(device),
        data=None if subject is None else subject.data.train,
        generator=torch.Generator().manual_seed(seed),
    )
    if as_json:
        claims = [asdict(claim) for claim in result.checks]
        found = {"passed": result.passed, "verified": result.verified, "checks": claims}
        typer.echo(json.dumps({**found, "unchecked": result.unchecked}, indent=2))
    else:
        show(certificate, result, Console(highlight=False, soft_wrap=True))
    if not result.verified:
        raise typer.Exit(1)


def show(certificate: Certificate, result: Verification, console: Console) -> None:
    """Print whether each claim holds, and the verdict."""
    for claim in result.checks:
        mark = "[green]holds[/green]" if claim.passed else "[red]fails[/red]"
        console.print(mark, end=" ")
        console.print(f" {claim.what}: {claim.detail}", markup=False)
    for missing in result.unchecked:
        console.print("[yellow]not checked[/yellow]", end=" ")
        console.print(f" {missing}", markup=False)
    verdict = "[green]verified[/green]" if result.passed else "[red]refuted[/red]"
    if result.passed and not result.verified:
        verdict = "[yellow]consistent, but not verified[/yellow]"
    console.print(f"bound {certificate.bound:.4f}: {verdict}")
