"""What would break a training here, found before it starts: `entrypoint doctor`."""
