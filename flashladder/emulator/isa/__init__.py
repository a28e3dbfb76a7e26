"""The instructions: a row of `flashladder.emulator.table` for each form, in modules by kind."""
