"""Which overwrites are part of the function: aliases and their readers, from source alone."""
