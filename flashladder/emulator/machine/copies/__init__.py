"""Copies that land later: cp.async, bulk copies, boxes of tensors, and what is in flight."""
