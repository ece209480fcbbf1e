"""How fast jobs train at each size: measurements, models and predictions. Pure functions and values."""
