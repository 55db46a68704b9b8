"""A batch as a linear program: derivatives of a model at its weights, recorded once, applied often."""
