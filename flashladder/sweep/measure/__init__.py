"""One cell of a sweep: on a GPU or on this CPU, what may fail in it, and the environment and builds it needs."""
