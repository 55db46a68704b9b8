"""What every outcome of the catalogue must be."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

from curvescope.catalogue.entry import Outcome
from curvescope.catalogue.pictures import Picture


def assert_sound(found: Outcome) -> None:
    """Finite numbers under names of their own, pictures that show something and can be saved."""
    assert found.rows
    assert all(math.isfinite(row.ours) for row in found.rows)
    assert len({row.what for row in found.rows}) == len(found.rows)
    assert found.notes
    again = json.loads(json.dumps(asdict(found)))
    assert len({picture.name for picture in found.pictures}) == len(found.pictures)
    for picture, saved in zip(found.pictures, again["pictures"], strict=True):
        assert Picture.from_json(saved) == picture
        for panel in picture.panels:
            assert panel.curves or panel.image is not None
            assert all(curve.y for curve in panel.curves)
            assert all(math.isfinite(y) for curve in panel.curves for y in curve.y)
