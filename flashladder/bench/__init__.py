"""How fast a kernel is beside FA2: the paired timer, reference arms, second opinions."""
