"""Transforms of any method's messages: privacy, compression, normalisation layers."""
