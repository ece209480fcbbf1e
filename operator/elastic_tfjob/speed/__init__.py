"""Training speeds of jobs by size: measurements, models and predictions. Pure functions and immutable values."""
