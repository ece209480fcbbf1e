"""Speed models: how fast jobs really train. The policy sees only what the engine tells it."""
