"""This machine's GPUs: which, in what state, what may be read of them; launches, counters, sanitizers."""
