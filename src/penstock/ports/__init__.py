"""What Penstock needs from the outside, as protocols without a word of any SDK."""
