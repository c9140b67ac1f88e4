"""The population engine: sampled units of an infinite network, for any cell."""
