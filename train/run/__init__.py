"""This package trains one start of a run, and keeps the run's folder, its lock and its records."""
