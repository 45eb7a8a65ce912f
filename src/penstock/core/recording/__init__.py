"""The decisions of recordings: their metadata, the moments of reshards, and redaction."""
