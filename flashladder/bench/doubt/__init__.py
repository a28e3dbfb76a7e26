"""Timings by other means than the paired timer's, and kernels beside the best of several libraries."""
