"""What `train COMMAND` does, from its arguments to its exit code. No torch."""
