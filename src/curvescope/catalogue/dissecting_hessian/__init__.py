"""Entries for *Dissecting Hessian* (DH)."""

from curvescope.catalogue.dissecting_hessian import (
    autocorrelation,
    batch_norm,
    clustering,
    correspondence,
    full_hessian,
    full_hessian_depth,
    hyperparameters,
    input_scaling,
    output_spaces,
    overlap_cifar,
    overlap_deep,
    overlap_mnist,
    random_two_layer,
    structures,
    table_9,
    training,
    trajectory,
)
from curvescope.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    structures.ENTRY,
    training.ENTRY,
    trajectory.ENTRY,
    overlap_mnist.ENTRY,
    *overlap_cifar.ENTRIES,
    correspondence.ENTRY,
    hyperparameters.ENTRY,
    *overlap_deep.ENTRIES,
    batch_norm.ENTRY,
    autocorrelation.ENTRY,
    output_spaces.ENTRY,
    full_hessian.ENTRY,
    full_hessian_depth.ENTRY,
    random_two_layer.ENTRY,
    clustering.ENTRY,
    input_scaling.ENTRY,
    table_9.ENTRY,
)
