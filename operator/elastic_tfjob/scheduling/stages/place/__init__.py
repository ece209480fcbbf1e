"""Place: which node each replica runs on."""
