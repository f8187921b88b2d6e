"""Running text for pre-training: read files, split them into documents, tokenize them, build examples."""
