"""What clients ask for: the fields of each body, read and checked, as what the engine is asked."""
