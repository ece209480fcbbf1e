"""Speed models: the true training speeds of simulated jobs. A policy sees only the engine's Snapshot."""
