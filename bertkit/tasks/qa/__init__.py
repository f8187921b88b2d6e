"""`qa`: a span of a paragraph that answers a question."""
