"""Tables, plots and figures of the documents that are rendered from committed results.

``invoke report`` is `command`; with ``--check`` it compares and writes nothing.
"""
