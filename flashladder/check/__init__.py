"""Is a kernel correct? Runs every case on this GPU, or on this CPU by the emulator, with the same bounds."""
