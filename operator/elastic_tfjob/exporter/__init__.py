"""The sidecar that turns progress into metrics: stdlib and prometheus-client only."""
