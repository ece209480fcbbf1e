"""What people type: jobs, explain, top, logs, what-if, check, scale, auto, suspend, resume. With the user's own rights."""
