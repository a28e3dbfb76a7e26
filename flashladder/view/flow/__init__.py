"""A kernel's control flow for people: an outline for the terminal, DOT, SVG, and counts per KV block.

``python -m flashladder.view.flow`` is `command`.
"""
