"""Builds the models, and loads their weights."""
