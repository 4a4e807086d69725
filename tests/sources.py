"""Modules made from source text in files, as users have them."""

import importlib.util
import itertools
import sys
import textwrap
from pathlib import Path
from types import ModuleType

_numbers = itertools.count()


def load_source(directory: Path, text: str, name: str | None = None) -> ModuleType:
    """Write a text to a file and import it as a module of its own."""
    name = name or f"source_{next(_numbers)}"
    path = directory / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
