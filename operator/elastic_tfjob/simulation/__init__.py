"""The simulator: event engine, workloads, speed models and reports."""
