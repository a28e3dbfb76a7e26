"""Locks on machine code, what explains a difference from them, and the claims about its instruction counts.

results/locks holds a digest and the opcode counts of every kernel. ``python -m flashladder.lock`` is `command`.
"""
