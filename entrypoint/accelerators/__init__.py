"""Each module of this package is all that the product knows of one vendor's accelerators."""
