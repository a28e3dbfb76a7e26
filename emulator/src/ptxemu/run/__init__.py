"""A launch from arguments to results: where variables lie, the loop over basic blocks, undefined values."""
