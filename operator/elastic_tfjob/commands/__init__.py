"""What people type: jobs, explain, top, logs, scale, auto, suspend, resume. With the user's own rights."""
