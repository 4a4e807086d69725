"""Examples in docstrings of integrations run where their library is installed."""

import importlib.util

import pytest

# module with the examples, and the library that they import
NEEDED = {
    "safemodules.integrations.lightning": "lightning",
    "safemodules.integrations.transformers": "transformers",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the examples whose library is missing."""
    missing = {name: lib for name, lib in NEEDED.items() if importlib.util.find_spec(lib) is None}
    for item in items:
        for name, library in missing.items():
            if isinstance(item, pytest.DoctestItem) and item.name.startswith(f"{name}."):
                reason = f"{library} is not installed (extra trainers)"
                item.add_marker(pytest.mark.skip(reason=reason))
