"""Machine code that must not change: locks, what explains a difference, and the claims that counts of it support.

results/locks holds a digest and the opcode counts of every kernel. ``python -m flashladder.lock`` is `command`.
"""
