"""curvescope: the curvature of neural networks, exactly where possible, with error bars where not."""
