"""What a monitor's measurements cost, and how often they come for a budget."""

from __future__ import annotations

from dataclasses import dataclass

from curvescope.monitor.schedule import Budget


@dataclass(frozen=True)
class Price:
    """Seconds of each quantity, also in gradients of the probe; ``print`` shows a table."""

    budget: float
    seconds: dict[str, float]
    gradients: dict[str, float]
    spacing: dict[str, float]  # seconds of training between two measurements

    def __str__(self) -> str:
        rows = [f"{self.budget:.0%} of the training's time:"]
        rows += [
            f"  {name:<12} {1e3 * cost:8.1f} ms  {self.gradients[name]:6.1f} gradients of the probe"
            f"  every {self.spacing[name]:.3g} s"
            for name, cost in self.seconds.items()
        ]
        return "\n".join(rows)


def price_of(budget: Budget, gradient: float) -> Price:
    """The price by the last measurements."""
    spacing = {
        name: cost / max(budget.share * budget.parts[name], 1e-12)
        for name, cost in budget.prices.items()
    }
    gradients = {name: cost / gradient for name, cost in budget.prices.items()}
    return Price(budget.share, dict(budget.prices), gradients, spacing)
