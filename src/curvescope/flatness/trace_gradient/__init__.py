"""Traces of curvature matrices as norms of pulled-back random cotangents, differentiably."""
