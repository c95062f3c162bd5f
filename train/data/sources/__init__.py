"""Holds the entries of the data sources: the facts about each without torch, and how to open it."""
