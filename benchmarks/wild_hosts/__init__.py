"""Models of real packages, made by their own constructors and fed by their own loaders, for `wild.py`."""
