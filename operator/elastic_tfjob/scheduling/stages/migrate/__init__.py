"""Migrate: what to move although its size stays."""
