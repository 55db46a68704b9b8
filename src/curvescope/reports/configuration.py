"""Configurations as flat lists of settings, for tables and for telling runs apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from curvescope.reports.blocks import Table

_SHAPES = ("parameters", "architecture")


def flatten(config: Any, name: str = "") -> dict[str, str]:
    """Every setting by its path; shapes of tensors are counted, not listed.

    >>> flatten({"seed": 0, "recipe": {"lr": 0.1, "milestones": []}, "test": None})
    {'seed': '0', 'recipe.lr': '0.1', 'recipe.milestones': '–', 'test': '–'}
    """
    if isinstance(config, Mapping):
        if name.endswith(_SHAPES):
            return {name: f"{len(config)} tensors"}
        settings: dict[str, str] = {}
        for key, value in config.items():
            settings |= flatten(value, f"{name}.{key}".lstrip("."))
        return settings
    return {name: _text(config)}


def _text(value: Any) -> str:
    if value is None or value in ([], ""):
        return "–"
    if isinstance(value, list):
        between = "; " if isinstance(value[0], list) else ", "
        return between.join(_text(entry) for entry in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def differing(configs: Sequence[Any]) -> dict[str, list[str]]:
    """The settings in which configurations differ, with the value that each has.

    >>> differing([{"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0, "penalty": "trace"}])
    {'lr': ['0.1', '0.2'], 'penalty': ['–', 'trace']}
    """
    flat = [flatten(config) for config in configs]
    names = dict.fromkeys(name for config in flat for name in config)
    rows = {name: [config.get(name, "–") for config in flat] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


def settings_table(config: Any) -> Table:
    """All settings of one run."""
    rows = [[name, value] for name, value in flatten(config).items()]
    return Table("Configuration", ["setting", "value"], rows, prose=True, folded=True)
