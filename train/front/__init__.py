"""What the command line needs before anything is started. No torch."""
