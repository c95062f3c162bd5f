"""Files that appear whole, one holder at a time, and what the system's refusals mean."""
