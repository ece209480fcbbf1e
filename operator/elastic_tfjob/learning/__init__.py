"""Training of the policy of profile `dl2` in simulation: episodes, imitation of a teacher, evolution strategies, and
actor-critic."""
