"""The loop that plans all jobs, and writes their targets, events and loans."""
