"""`train eval`: one checkpoint measured again."""
