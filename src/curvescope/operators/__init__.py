"""Matrices known through their products: curvature of problems, and the algebra of operators."""
