"""Replays: the server is a recorded stream again. docs/recording-format.md describes the file."""
