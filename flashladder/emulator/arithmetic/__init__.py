"""Arithmetic that NumPy does not have: rounding modes, fused products, flushed results, byte permutation."""
