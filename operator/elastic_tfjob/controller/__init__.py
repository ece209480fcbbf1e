"""The live world: caches, one pure reconcile per job, and the executor that carries its actions out."""

from typing import Final

LEASE_NAME: Final = "elastic-tfjob-operator"
"""Of the Lease that the leader holds, unless --leader-election-id says another. The manifests' Role admits this one."""
