"""The version of this package; hatch reads it here."""

__version__ = "0.2.0"
