"""This machine's GPUs: which, in what state, what may be read of them; launches, counters, sanitizers.

Everything is read and nothing is set. `doctor` says what this machine can do.
"""
