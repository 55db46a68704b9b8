"""Slow, obvious, dense float64 references; nothing here imports the library."""
