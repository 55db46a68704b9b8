"""Studies of a small language model, which reproduce no paper."""
