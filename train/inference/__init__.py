"""This package applies trained models to image files and exports them."""
