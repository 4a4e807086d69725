"""What a step of training needs, and how to make it fit: see :func:`profile_memory`."""
