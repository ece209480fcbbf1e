"""Steps that several profiles use, and what steps are made of."""
