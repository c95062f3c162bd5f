"""A run's state, kept whole or not at all."""
