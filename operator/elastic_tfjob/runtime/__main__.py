"""`python -m elastic_tfjob.runtime -- COMMAND...`, and launcher.pyz: run the launcher."""

if __name__ == "__main__":
    # Before all other imports: the first process of a container does not get a SIGTERM that it neither handles nor
    # blocks, and its pod would end half a minute later. (The module signal takes some time to import.)
    import _signal as signal  # type: ignore[import-not-found]

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})

    from elastic_tfjob.runtime.entry_point import main

    main(mask)
