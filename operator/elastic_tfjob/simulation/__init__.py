"""The simulated world: event engine, workloads, speed models and reports."""
