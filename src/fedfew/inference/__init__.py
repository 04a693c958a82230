"""Uses of a trained model: predictions, exports, and which images to label next."""
