"""One file that carries the ladder to a node without network: wheels, grids, PTX, a runner that needs Python and torch.

``invoke bundle`` makes it; ``python3 BUNDLE.pyz`` runs it there.
"""
