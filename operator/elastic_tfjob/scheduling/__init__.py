"""The decision core: a pure function from a Snapshot of the cluster to a Plan."""
