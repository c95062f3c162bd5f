"""Builds the loss, the optimizer, the learning rate schedule and the EMA of the weights."""
