"""The simulated world: event engine, workloads, worlds and reports."""
