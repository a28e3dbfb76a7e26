"""Sweeps as a job array of Slurm: options, submission, the tasks' side."""
