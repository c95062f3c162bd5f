"""Opens the data sources, and samples, augments and loads batches from them."""
