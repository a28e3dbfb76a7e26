"""This machine's GPUs: detection, state, and what may be read; launches, counters, sanitizers."""
