"""PTX text to data and back: tokens, operands, declarations, a module's tree."""
