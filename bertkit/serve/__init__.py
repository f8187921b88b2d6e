"""The HTTP server of `bertkit serve`: predictions of finished runs, and a page to try them."""
