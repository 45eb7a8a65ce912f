"""The deterministic simulator."""
