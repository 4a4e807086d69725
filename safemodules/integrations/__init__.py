"""Bridges to other libraries; each is imported by name and loads its library only then."""
