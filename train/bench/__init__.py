"""This package measures the user's own machines: `train bench comm`, `scaling` and `sweep`."""
