"""Ports in memory, with faults: for tests and the simulator."""
