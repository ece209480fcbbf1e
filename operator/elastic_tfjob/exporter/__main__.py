"""`python -m elastic_tfjob.exporter --dir DIRECTORY --port PORT`: serve /status, /metrics and /healthz."""

from elastic_tfjob.runtime.serving import Sigterm

if __name__ == "__main__":
    # Before all else is imported: the first process of a container does not get a SIGTERM that it has no handler for,
    # and its pod is ended half a minute later.
    sigterm = Sigterm()

    from elastic_tfjob.exporter.server import main

    main(sigterm)
