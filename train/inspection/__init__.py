"""`train data check`: every sample looked at once."""
