"""Measurements side by side with others' ways to do the same: `train bench`."""
