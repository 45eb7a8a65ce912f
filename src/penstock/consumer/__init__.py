"""The lease-coordinated consumer."""
