"""Lend: which nodes of the other pool to borrow or give back."""
