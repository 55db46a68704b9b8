"""What every picture must be."""

from __future__ import annotations

import math

from curvescope.figures.model import Panel, Picture


def assert_complete(picture: Picture) -> None:
    """Every axis says what it is, every curve has a name or looks like one that has."""
    assert picture.caption.endswith(".")
    for panel in picture.panels:
        if panel.note:
            assert not panel.curves
            continue
        assert panel.curves or panel.image is not None
        named = panel.image is not None and bool(panel.image.columns)
        assert panel.xlabel or named, picture.name
        assert panel.ylabel or panel.title, picture.name
        assert all(curve.y for curve in panel.curves)
        assert all(math.isfinite(y) for curve in panel.curves for y in curve.y)
        assert unnamed(panel) == []
        for curve in panel.curves:
            if curve.low is not None and panel.ylabel == "overlap":
                assert min(curve.low) >= 0
                assert max(curve.high or ()) <= 1


def unnamed(panel: Panel) -> list[int]:
    """Places of curves that a legend does not tell from others."""
    looks = [
        (place if curve.color is None else curve.color, curve.kind, curve.label)
        for place, curve in enumerate(panel.curves)
    ]
    named = {look[:2] for look in looks if look[2]}
    if len({look[:2] for look in looks}) == 1:
        return []  # one kind of curve: the axis says what it is
    return [place for place, look in enumerate(looks) if look[:2] not in named]
