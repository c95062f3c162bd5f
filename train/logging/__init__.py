"""This package records a run's metrics, progress and resource usage."""
