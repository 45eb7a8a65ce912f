"""Reading one shard: where it resumes, its next request, and how records reach user code."""
