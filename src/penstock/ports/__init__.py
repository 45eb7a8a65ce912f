"""The services that Penstock uses, as protocols without SDK types."""
