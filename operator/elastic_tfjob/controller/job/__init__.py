"""Decides the next step of one job."""
