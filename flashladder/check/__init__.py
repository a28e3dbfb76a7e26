"""Is a kernel right? Every case on this GPU, or on this CPU by the emulator, by one rule."""
