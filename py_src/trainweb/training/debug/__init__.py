"""Tools that look into a model: checks with example code, NaN or infinity, and dead units."""
