"""From the config to batches of samples: where they come from, in which order, and how they are changed."""
