"""Tables, plots and the numbers in documents, all rendered from committed results.

``invoke report`` is `command`; with ``--check`` it compares and writes nothing.
"""
