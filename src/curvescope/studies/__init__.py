"""Every figure and table of the four papers that can be computed, by name."""
