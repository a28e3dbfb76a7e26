"""Result documents: their schema, their files, and what is derived from raw samples."""
