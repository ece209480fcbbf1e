"""The operator in a live cluster: caches, a pure reconcile function for each job, and the executor of its actions."""

from typing import Final

LEASE_NAME: Final = "elastic-tfjob-operator"
"""Name of the leader's Lease, unless --leader-election-id sets another. The Role in the manifests permits only this."""
