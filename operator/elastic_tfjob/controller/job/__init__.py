"""One job: what its next step is."""
