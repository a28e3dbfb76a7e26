"""Worker processes and who watches them: a lane per GPU or CPU, the run over all lanes, and what may fail."""
