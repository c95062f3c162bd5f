"""`entrypoint doctor` finds what would break a training here before it starts."""
