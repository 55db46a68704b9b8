"""The stages of an analysis: each computes its part and rebuilds it from a directory."""
