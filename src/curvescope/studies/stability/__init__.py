"""Studies of curvature while a network trains, which reproduce no paper."""
