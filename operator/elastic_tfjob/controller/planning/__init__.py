"""What a round of the scheduling loop computes: from objects of the cluster to targets of jobs. Pure."""
