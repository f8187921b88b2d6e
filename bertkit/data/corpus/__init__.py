"""Running text for pre-training: files to documents, tokens, and examples."""
