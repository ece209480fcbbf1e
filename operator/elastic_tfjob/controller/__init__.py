"""The live world: caches, one pure reconcile per job, and the executor that carries its actions out."""
