"""How products with a curvature matrix are made: strategies, and the plan that chooses one."""
