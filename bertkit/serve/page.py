"""The page at `/`, with which people try the models."""

from functools import cache

from bertkit.reports.page import render_template

# The policy of the page itself allows only its own script, and requests to this server.
PAGE_HEADERS = {
    "content-security-policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


@cache
def render_page() -> bytes:
    """Return the page. It is the same for all servers: its script reads the models from `/info`.

    So it contains nothing that a token protects.
    """
    return render_template("server.html", "server.js", title="bertkit serve").encode()
