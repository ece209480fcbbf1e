"""All I/O of the controller: with the API server, pods and Prometheus."""
