"""When to measure: each quantity from its share of the time that the training has taken.

Every quantity has an account. It earns its part of ``budget · seconds`` while the training goes on,
is measured as soon as the account holds the price of a measurement, and pays what it really cost.
So the monitor's share of the training's time stays below the budget, whatever a step costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

WEIGHTS = {"top": 4.0, "noise": 2.0}
"""Parts of the budget; 1 for all others. An eigenvalue is dearest, and is looked at most."""
_SAVINGS = 2.0  # prices that an account holds at most: a pause brings no run of measurements


@dataclass
class Budget:
    """Accounts in seconds; ``share`` is the budget."""

    share: float
    names: tuple[str, ...]
    prices: dict[str, float] = field(default_factory=dict)
    accounts: dict[str, float] = field(default_factory=dict)

    def _part(self, name: str) -> float:
        return WEIGHTS.get(name, 1.0) / sum(WEIGHTS.get(each, 1.0) for each in self.names)

    def earn(self, seconds: float) -> None:
        """The training has taken so long without the monitor."""
        for name in self.names:
            most = max(_SAVINGS * self.prices.get(name, 0.0), self.accounts.get(name, 0.0))
            earned = self.accounts.get(name, 0.0) + self.share * seconds * self._part(name)
            self.accounts[name] = min(earned, most)

    def due(self) -> list[str]:
        """What can be paid now."""
        return [n for n in self.names if self.accounts.get(n, 0.0) >= self.prices.get(n, 0.0) > 0]

    def pay(self, seconds: Mapping[str, float]) -> None:
        """Measurements have cost so much."""
        for name, cost in seconds.items():
            old = self.prices.get(name, cost)
            self.prices[name] = 0.5 * (old + cost)
            self.accounts[name] = self.accounts.get(name, 0.0) - cost

    def pay_together(self, seconds: float) -> None:
        """Time that belongs to no measurement."""
        for name in self.names:
            self.accounts[name] = self.accounts.get(name, 0.0) - seconds * self._part(name)

    def state(self) -> dict[str, Any]:
        """What :meth:`load` needs."""
        return {"prices": dict(self.prices), "accounts": dict(self.accounts)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.prices, self.accounts = dict(state["prices"]), dict(state["accounts"])


def ordered(names: Iterable[str], all_names: Iterable[str]) -> tuple[str, ...]:
    """``names`` in the order of ``all_names``."""
    chosen = set(names)
    return tuple(name for name in all_names if name in chosen)
