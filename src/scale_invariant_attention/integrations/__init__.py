"""Other libraries that the op and the models are at home in."""
