"""Products of warpgroups, their fences and the descriptors of their operands."""
