"""Pictures, drawn from saved records only."""
