"""Kernels in files that others built: wheels, libraries, objects, fatbins, cubins, PTX.

Gives a listing of kernels, and the machine code or the PTX of one, to `flashladder.view`. Knows no iteration.
"""
