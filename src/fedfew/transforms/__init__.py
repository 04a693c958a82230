"""What is done to messages around any method: privacy, compression, normalisation layers."""
