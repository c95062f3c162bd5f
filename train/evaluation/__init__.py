"""From a model and held-out samples to scores, and what follows from them."""
