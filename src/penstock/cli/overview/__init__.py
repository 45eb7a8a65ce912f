"""The views of `penstock top` and `penstock dashboard`: snapshots of applications, with their problems."""
