"""Benchmarks on a live cluster: scenarios (files), operators, runs; JSON, tables and plots of what came of it."""
