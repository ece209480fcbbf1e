"""`python -m elastic_tfjob.runtime -- COMMAND...`: the launcher."""

from elastic_tfjob.runtime.launcher import main

if __name__ == "__main__":
    main()
