"""What families of kernels hand to everything else: small data, and the parts that lie in files."""
