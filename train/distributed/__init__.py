"""This package sets up a rank and lets the ranks decide together."""
