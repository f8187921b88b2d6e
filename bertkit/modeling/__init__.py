"""Loading any encoder, and the one loss rule."""
