"""The query API: read-only HTTP access to the objects in the operator's informers. `rows` is pure, `server` does
I/O."""
