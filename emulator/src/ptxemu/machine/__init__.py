"""What threads see, and how one instruction runs: registers, memories, barriers, copies in flight, control flow."""
