"""Recipes that walk the whole road: data, a network, training, operators, estimates."""
