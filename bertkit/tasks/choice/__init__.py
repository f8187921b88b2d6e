"""`swag`: the ending that follows a context."""
