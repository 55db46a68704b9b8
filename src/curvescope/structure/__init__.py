"""Why the spectrum looks as it does: Kronecker factors, overlaps, classes, layers."""
