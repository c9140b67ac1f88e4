"""The papers' figures, tables and statements, a file each: its name is the target's, with ``_`` for ``-``."""
