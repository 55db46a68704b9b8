"""Figures and tables of the four papers, and studies of no paper, by name."""
