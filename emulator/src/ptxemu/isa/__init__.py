"""The instructions: modules by kind, a row of `ptxemu.table` for each form."""
