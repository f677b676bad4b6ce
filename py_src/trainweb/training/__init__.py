"""Sessions, checkpoint states and what they stand on."""
