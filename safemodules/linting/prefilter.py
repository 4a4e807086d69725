"""Which files and functions can hold a finding at all, told by searching the text.

Parsing is most of the cost. A file is parsed only if its text has something that a rule looks
for; a function is analysed only if such a place lies in it. Each pattern is wider than its rule.
"""

import re

#: Something may be overwritten.
WRITES = re.compile(
    rb"(?:[-+*/%&|^]|<<|>>)=|[A-Za-z0-9]_(?!\w)|\binplace\b|\bout\s*=|[\])]\s*=(?!=)|\]\s*,[^\n=]*="
    rb"|\bfor\s+[\w.]+\[|\bas\s+[\w.]+\[|\.data\b|requires_grad|True\s*[,)]"
)
#: Something may be checkpointed.
CHECKPOINTS = re.compile(rb"checkpoint|Checkpoint")
#: A loop may keep its iterations.
LOOPS = re.compile(rb"\bfor\b")
BACKWARD = re.compile(rb"\bbackward\b")
#: A constructor may be given the flag.
FLAGS = re.compile(rb"\binplace\b|True\s*[,)]")
#: A file may hold modules, or code that trains them.
TORCH = re.compile(rb"torch|\bforward\b|\bbackward\b")


def may_find(data: bytes) -> bool:
    """Whether a file can hold a finding, or lead to one.

    Example:
        >>> may_find(b"import torch"), may_find(b"x += 1"), may_find(b"VERSION = (1, 2)")
        (True, True, False)
    """
    return TORCH.search(data) is not None or WRITES.search(data) is not None
