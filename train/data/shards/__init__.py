"""Holds all that is known of tar shards: their index, their images, and the order in which an epoch reads them."""
