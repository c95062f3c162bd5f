"""From a YAML file and a World to a trained model."""
