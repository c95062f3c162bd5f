"""This package saves a run's state whole or not at all, and loads it again."""
