"""How fast a kernel is beside FA2: the paired timer, reference arms, second opinions.

Raw samples go into result documents (`flashladder.results`). ``python -m flashladder.bench`` is `command`.
"""
