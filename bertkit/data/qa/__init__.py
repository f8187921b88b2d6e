"""Data of extractive question answering: questions, contexts and answer spans."""
