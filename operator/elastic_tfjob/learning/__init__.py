"""Training of the policy of profile `dl2`, in simulation: episodes, a teacher's decisions, evolution strategies."""
