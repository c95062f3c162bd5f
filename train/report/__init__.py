"""Runs and benches become a page that people can look at, print and send."""
