"""This package loads and checks the configuration, and computes what follows from it alone.

It never imports torch.
"""
