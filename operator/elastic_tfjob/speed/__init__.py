"""How fast a job trains with w workers and p parameter servers. Pure."""
