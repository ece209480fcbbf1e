"""Everything that talks: to the API server, to pods, to Prometheus."""
