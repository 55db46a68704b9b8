"""Entries for *Dissecting Hessian* (DH)."""

from curvescope.catalogue.dissecting_hessian import (
    batch_norm,
    clustering,
    correspondence,
    full_hessian,
    input_scaling,
    overlap_cifar,
    overlap_mnist,
    random_two_layer,
    table_9,
    training,
    trajectory,
)
from curvescope.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    training.ENTRY,
    trajectory.ENTRY,
    overlap_mnist.ENTRY,
    *overlap_cifar.ENTRIES,
    correspondence.ENTRY,
    batch_norm.ENTRY,
    full_hessian.ENTRY,
    random_two_layer.ENTRY,
    clustering.ENTRY,
    input_scaling.ENTRY,
    table_9.ENTRY,
)
