"""`ner`: a tag for each word."""
