"""Kernels for longer than a check: beside other work, a million launches, rows of 2^18 positions.

``python -m flashladder.check.soak`` is `command`.
"""
