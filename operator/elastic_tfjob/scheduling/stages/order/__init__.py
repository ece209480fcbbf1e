"""Order: which job first."""
