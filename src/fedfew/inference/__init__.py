"""What a trained model is used for: predictions, exports, which images to label next."""
