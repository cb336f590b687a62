"""Other libraries that scale-invariant attention moves into; each is imported by its name."""
