"""The same PTX on this machine's GPU through the driver, which is what the emulator is held against."""
