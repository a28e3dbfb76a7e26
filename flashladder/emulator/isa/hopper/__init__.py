"""Instructions that came with sm_90."""
