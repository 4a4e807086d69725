"""What ends an abstract run."""


class UnsupportedError(Exception):
    """Something that the interpreter does not understand."""
