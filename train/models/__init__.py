"""From a name, its arguments and a shape to a network with weights."""
