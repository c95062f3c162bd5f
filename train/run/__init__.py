"""One start of a run, from its first line to its last."""
