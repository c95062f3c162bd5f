"""All ranks add up numbers once, to see whether they can: `python -m train.smoke`, for `entrypoint doctor --full`."""
