"""What a finished run, or a model, is used for: predictions, scores on other data, vectors, exports."""
