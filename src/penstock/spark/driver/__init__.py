"""The driver's side of a streaming query: its place among the workers, the plan of each batch, and its settlement."""
