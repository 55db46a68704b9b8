"""Studies of *Flatness is a False Friend*."""
