"""Pictures of results. A plot takes a result, never a model, and returns a matplotlib figure."""
