"""A file per experiment."""
