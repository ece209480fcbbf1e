"""What people type, with their own rights: to look (jobs, explain, top, logs, what-if, check) and to change jobs."""
