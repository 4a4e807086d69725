"""The project's links, told at build time: a clone knows no address, but who releases it does.

GitHub's runners name the repository in ``GITHUB_SERVER_URL`` and ``GITHUB_REPOSITORY``; elsewhere
``PROJECT_URL`` does. Where neither is set the metadata has no links, rather than invented ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINKS = {
    "Homepage": "",
    "Documentation": "/tree/main/docs",
    "Issues": "/issues",
    "Changelog": "/blob/main/CHANGELOG.md",
}


def links(environment: Mapping[str, str]) -> dict[str, str]:
    """The links by name; none if the environment does not name the repository."""
    server, repository = (environment.get(f"GITHUB_{key}") for key in ("SERVER_URL", "REPOSITORY"))
    named = f"{server}/{repository}" if server and repository else ""
    url = (environment.get("PROJECT_URL") or named).rstrip("/")
    return {name: url + path for name, path in LINKS.items()} if url else {}


class ProjectLinks(MetadataHookInterface):
    """Sets ``project.urls``."""

    def update(self, metadata: dict[str, object]) -> None:
        """Fill in what pyproject.toml leaves open."""
        metadata["urls"] = links(os.environ)
