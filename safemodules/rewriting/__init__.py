"""Edits of source text, functions compiled from edited text, and classes that hold them."""
