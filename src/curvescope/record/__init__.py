"""A batch as a linear program: a model's derivatives, recorded once and applied often."""
