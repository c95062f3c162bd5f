"""This package measures a model on validation samples and compares the results."""
