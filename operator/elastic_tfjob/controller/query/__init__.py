"""What people ask the operator: a read-only HTTP API on what its informers hold. `rows` is pure, `server` talks."""
