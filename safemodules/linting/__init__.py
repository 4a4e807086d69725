"""Finding and mending in-place faults in source files, before anything runs."""
