"""A run of a model, with what its recurrent modules were given and returned, that leaves the model as it was."""
