"""What tests, benchmarks and the demo stand on: built programs, a control plane, a kind cluster, operators."""
