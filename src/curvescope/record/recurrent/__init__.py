"""Recurrent layers as single operations, with loops over time for value, tangent and adjoint."""
