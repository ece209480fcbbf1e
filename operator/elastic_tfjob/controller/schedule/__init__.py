"""All jobs: Snapshot, Plan, targets."""
