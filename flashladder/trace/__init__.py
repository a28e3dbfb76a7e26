"""A kernel's online softmax, step by step: its values after each KV block compared with the expected ones."""
