"""Reading one shard: where it resumes, what is asked next, and how records reach user code."""
