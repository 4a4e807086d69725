"""What ends an abstract run."""


class UnsupportedError(Exception):
    """Something that the interpreter does not understand."""


class ImpossibleCallError(UnsupportedError):
    """A function is called with arguments that it does not take."""
