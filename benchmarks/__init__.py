"""Benchmarks of safemodules: the zoo of real models, step time, conversion time.

Nothing in here is part of the installed package. Run from the root of the repository::

    python -m benchmarks --list
    python -m benchmarks --quick
    python -m benchmarks.zoo --suite torchvision
    python -m benchmarks.step_time
    python -m benchmarks.conversion_time
"""
