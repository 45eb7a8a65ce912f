"""The decisions: pure functions and machines without clock, chance or IO."""
