"""The scheduling loop: plans all jobs, and writes their targets, events and loans."""
