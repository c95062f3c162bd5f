"""This package compares this project's speed with other programs. It is used from a checkout: `python -m bench`."""
