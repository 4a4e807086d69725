"""Which findings are wanted: options of the command line, pyproject.toml and setup.cfg."""

import configparser
import contextlib
import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from safemodules.errors import SafeModulesError
from safemodules.linting.codes import CODES
from safemodules.linting.findings import Finding, Severity

_LEVELS = (Severity.NOTE, Severity.WARNING, Severity.ERROR)
_SECTION = "[tool.safemodules.lint]"
_LISTS = ("select", "ignore", "exclude")


class ConfigError(SafeModulesError, ValueError):
    """An option of the linter is unknown, or has a value that is not."""


@dataclass(frozen=True)
class Config:
    """What is reported.

    Attributes:
        select: beginnings of codes that are reported.
        ignore: beginnings of codes that are not; the longest beginning that fits decides.
        exclude: patterns of files and folders that are passed over.
        severity: the least severity that is reported.
        baseline: file with the findings that are known and not reported.
    """

    select: tuple[str, ...] = ("SM",)
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    severity: str = "note"
    baseline: str | None = None

    def __post_init__(self) -> None:
        for name in ("select", "ignore"):
            for code in getattr(self, name):
                if not code or not any(known.startswith(code) for known in CODES):
                    raise ConfigError(
                        f"{name}: no code begins with {code!r}; expected one of "
                        f"{', '.join(CODES)}, or the beginning of some, such as SM1"
                    )
        if self.severity not in [level.value for level in _LEVELS]:
            raise ConfigError(
                f"severity: {self.severity!r} is none; expected note, warning or error"
            )

    def wants(self, found: Finding) -> bool:
        """Whether a finding is reported, the baseline aside."""
        least = _LEVELS.index(Severity(self.severity))
        return self.wants_code(found.code) and _LEVELS.index(found.severity) >= least

    def wants_code(self, code: str) -> bool:
        """Whether findings of a code are reported.

        Example:
            >>> config = Config(select=("SM1",), ignore=("SM10",))
            >>> config.wants_code("SM110"), config.wants_code("SM101")
            (True, False)
        """
        return _longest(self.select, code) > _longest(self.ignore, code)


def _longest(beginnings: Iterable[str], code: str) -> int:
    return max((len(each) for each in beginnings if code.startswith(each)), default=0)


def load_config(folder: Path, overrides: Mapping[str, Any]) -> Config:
    """Read the options that hold in a folder.

    They stand in ``[tool.safemodules.lint]`` of the nearest pyproject.toml, or in
    ``[safemodules:lint]`` of the nearest setup.cfg, of the folder and those above it.

    Args:
        folder: where to look first.
        overrides: options of the command line; ``None`` and empty ones say nothing.

    Raises:
        ConfigError: an option is unknown or has a wrong value, or a file cannot be read.
    """
    found: dict[str, Any] = {}
    for where in (folder, *folder.parents):
        read = _from_pyproject(where / "pyproject.toml")
        read = _from_setup(where / "setup.cfg") if read is None else read
        if read is not None:
            found = read
            break
    given = {key: value for key, value in overrides.items() if value not in (None, (), [])}
    return replace(Config(**found), **given)


def _toml(path: Path) -> Any:
    """The module that reads TOML: Python's own, or before Python 3.11 tomli.

    Raises:
        ConfigError: there is none.
    """
    for name in ("tomllib", "tomli"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise ConfigError(
        f"{path} has a section {_SECTION}, and Python {sys.version_info[0]}.{sys.version_info[1]} "
        f"reads no TOML by itself. Install tomli, or put the options into setup.cfg."
    )


def _from_pyproject(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8")
        table = _toml(path).loads(text) if "tool.safemodules" in text else {}
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    section = table.get("tool", {}).get("safemodules", {}).get("lint")
    return None if section is None else _checked(section, path, _SECTION)


def _from_setup(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not parser.has_section("safemodules:lint"):
        return None
    section: dict[str, Any] = {}
    for key, value in parser.items("safemodules:lint"):
        name = key.replace("-", "_")
        section[key] = value.replace(",", " ").split() if name in _LISTS else value.strip()
    return _checked(section, path, "[safemodules:lint]")


def _checked(section: Mapping[str, Any], path: Path, where: str) -> dict[str, Any]:
    known = [entry.name for entry in fields(Config)]
    found: dict[str, Any] = {}
    for key, value in section.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ConfigError(f"{path}: {where} has no option {key!r}; expected {', '.join(known)}")
        if name in _LISTS:
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise ConfigError(f"{path}: {where} {key}: expected a list of strings")
            found[name] = tuple(value)
        elif not isinstance(value, str):
            raise ConfigError(f"{path}: {where} {key}: expected a string, got {value!r}")
        else:
            found[name] = str(path.parent / value) if name == "baseline" else value
    return found


def split_codes(values: Sequence[str]) -> tuple[str, ...]:
    """Codes of an option that may be given several times, and with commas.

    Example:
        >>> split_codes(["SM101,SM2", "SM3"])
        ('SM101', 'SM2', 'SM3')
    """
    return tuple(code for value in values for code in value.replace(",", " ").split())
