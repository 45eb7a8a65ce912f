"""The aggregating producer."""
