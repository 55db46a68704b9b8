"""The structures of DH's tables 3 to 5."""

from __future__ import annotations

from curvescope.studies.dissecting_hessian.structures import NETWORKS, lines
from tests.studies.dissecting import outcome, row


def test_networks_have_the_printed_structure() -> None:
    assert [len(printed.lines) for printed in NETWORKS] == [6, 12, 16]  # lines of tables 3 to 5
    for printed in NETWORKS:
        assert tuple(lines(printed.network, printed.inputs)) == printed.lines
    wider = lines("LeNet5-(fc1-80)", (3, 32, 32))
    different = [i for i, line in enumerate(NETWORKS[1].lines) if line != wider[i]]
    assert different == [7, 8]  # fc1 and its ReLU
    assert all(each.agrees is not False for each in outcome("structures").rows)
    assert row("structures", "table 4, LeNet5: parameters").ours == 62_006
