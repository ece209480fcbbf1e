"""The sidecar that publishes a pod's progress: stdlib and prometheus-client only."""
