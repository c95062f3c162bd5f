"""Holds the entries of the data sources: what is known about each without torch, and how it is opened."""
