"""Published data sets: what they are, and how they come here once and whole. No torch."""
