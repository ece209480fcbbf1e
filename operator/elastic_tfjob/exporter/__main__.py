"""`python -m elastic_tfjob.exporter --dir DIRECTORY --port PORT`: serve /status, /metrics and /healthz."""

from elastic_tfjob.runtime.serving import Sigterm

if __name__ == "__main__":
    # Before all other imports: the first process of a container does not get a SIGTERM without a handler, and its pod
    # would end half a minute later.
    sigterm = Sigterm()

    from elastic_tfjob.exporter.server import main

    main(sigterm)
