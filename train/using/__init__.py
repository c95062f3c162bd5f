"""What is done with a trained model: images told apart, and the model handed on."""
