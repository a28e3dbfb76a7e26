"""Result documents: their schema, files and digests, and what is derived from raw samples.

What was measured is kept whole; summaries, means and floors follow from it and are checked against it whenever a
document is read. Benchmarks, sweeps, gate and report all speak through these types.
"""
