"""Turns API objects into the rows of the query API and the command line. Pure.

Rows are computed from spec, status and annotations, without a clock, so every replica of the operator and every client
computes the same rows. Tenants write much of the input, so nothing here raises on it, and all output is bounded."""
