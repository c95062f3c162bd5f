"""This package loads what a user writes as checked values, and derives what follows from them
alone. It never imports torch.
"""
