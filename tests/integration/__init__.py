"""Faults: an operator that is killed, cut off or lied to, and what must hold all the same (ledger.py)."""
