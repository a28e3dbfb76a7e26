"""Whether results are all there and can be true: manifests, bounds, identities, ratios measured more than once.

Nothing to run here; `invoke gate` and `invoke verify` ask.
"""
