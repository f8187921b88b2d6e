"""Pages and model cards of finished runs."""
