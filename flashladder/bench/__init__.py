"""Speed relative to FA2: the paired timer, reference kernels, other timers."""
