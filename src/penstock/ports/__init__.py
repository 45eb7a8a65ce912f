"""What Penstock needs from outside, as protocols that know no SDK."""
