"""The codes that a site sends instead of words: nothing of its paths, names or data is in them."""

MEANINGS = {
    "E408": "its training failed; the site's log says why",
    "E409": "its warm process did not answer; the site's log says why",
    "E417.versions": "the site runs another version of fedfew or torch",
    "E417.privacy": "the site wants a smaller clip or more noise",
    "E417.code": "the site has not allowed code that the run names",
    "E417.data": "the site's images do not fit the run",
    "E417.model": "the site has other weights for the model's backbone",
    "E417.client": "the site does not serve this client",
    "E417.config": "the site cannot build this run",
    "E419": "the site refused what it was sent",
    "E420": "the site's privacy budget is spent",
}
"""Code → what the server writes for it."""


def meaning(code: object) -> tuple[str, str]:
    """The error code and the server's words for a site's code; what a site may not say counts as failed training."""
    known = code if isinstance(code, str) and code in MEANINGS else "E408"
    return known.partition(".")[0], MEANINGS[known]
