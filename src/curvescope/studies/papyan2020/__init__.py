"""Papyan (2020): *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*."""
