"""What moves the weights: loss, optimizer, learning rate, average."""
