"""Stacks of layers: each layer's input is the output process of the layer below."""
