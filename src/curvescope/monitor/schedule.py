"""When to measure: each quantity from its share of the time that the training has taken.

Every quantity has an account. It earns its part of ``budget · seconds`` while the training goes on,
is measured as soon as the account holds the price of a measurement, and pays what it really cost.
So the monitor's share of the training's time stays below the budget, whatever a step costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

WEIGHTS = {"top": 4.0, "noise": 2.0}
"""Parts of the budget; 1 for all others. An eigenvalue is dearest, and is looked at most."""
_SAVINGS = 2.0  # prices that an account holds at most: a pause brings no run of measurements


class Budget:
    """Accounts in seconds.

    Between measurements a step only adds to two sums; ``wait`` is how many seconds of training it
    takes at least until something can be paid, so that the accounts need not be looked at before.

    Args:
        share: The budget.
        names: The quantities.
        prices: What a measurement of each costs.
    """

    def __init__(
        self, share: float, names: Iterable[str], prices: Mapping[str, float] | None = None
    ) -> None:
        self.share, self.prices = share, dict(prices or {})
        weights = {name: WEIGHTS.get(name, 1.0) for name in names}
        self.parts = {name: w / sum(weights.values()) for name, w in weights.items()}
        self.accounts = dict.fromkeys(weights, 0.0)
        self._earned = self._spent = self._wait = 0.0

    def earn(self, seconds: float) -> None:
        """The training has taken so long without the monitor."""
        self._earned += seconds

    def spend(self, seconds: float) -> None:
        """The monitor has taken so long, besides measurements."""
        self._spent += seconds

    def due(self) -> list[str]:
        """What can be paid now."""
        if self._earned < self._wait:
            return []
        self._settle()
        due = [name for name, price in self.prices.items() if self.accounts[name] >= price > 0]
        self._wait = 0.0 if due else min(map(self._until, self.prices), default=0.0)
        return due

    def _until(self, name: str) -> float:
        rate = self.share * self.parts[name]
        price = self.prices[name]
        return (price - self.accounts[name]) / rate if rate > 0 and price > 0 else math.inf

    def _settle(self) -> None:
        for name, part in self.parts.items():
            held = self.accounts[name]
            most = max(_SAVINGS * self.prices.get(name, 0.0), held)
            change = (self.share * self._earned - self._spent) * part
            self.accounts[name] = min(held + change, most)
        self._earned = self._spent = 0.0

    def pay(self, seconds: Mapping[str, float]) -> None:
        """Measurements have cost so much; prices fall slowly, so that no account is overdrawn."""
        for name, cost in seconds.items():
            self.prices[name] = max(cost, 0.5 * (self.prices.get(name, cost) + cost))
            self.accounts[name] -= cost
        self._wait = 0.0

    def state(self) -> dict[str, Any]:
        """What :meth:`load` needs."""
        self._settle()
        return {"prices": dict(self.prices), "accounts": dict(self.accounts)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.prices, self.accounts = dict(state["prices"]), dict(state["accounts"])
        self._earned = self._spent = self._wait = 0.0


def ordered(names: Iterable[str], all_names: Iterable[str]) -> tuple[str, ...]:
    """``names`` in the order of ``all_names``."""
    chosen = set(names)
    return tuple(name for name in all_names if name in chosen)
