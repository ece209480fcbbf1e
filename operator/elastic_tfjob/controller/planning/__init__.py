"""The computations of one round of the scheduling loop, from cluster objects to the targets of jobs. Pure."""
