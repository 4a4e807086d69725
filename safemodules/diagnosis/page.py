"""Findings as HTML: a fragment for notebooks, and one self-contained page."""

from __future__ import annotations

import html
import linecache
from typing import TYPE_CHECKING

from safemodules.memory.text import size_text

if TYPE_CHECKING:  # the data renders itself by these functions
    from safemodules.diagnosis.findings import Clash, Diagnosis, SiteReport
    from safemodules.mutation.frames import Line
    from safemodules.mutation.sites import Site

__all__ = ["document", "fragment"]

_AROUND = 3
_STYLE = """
:root { color-scheme: light dark; --line: #8885; --bad: #c0392b; --odd: #b9770e; --good: #2e7d4f }
.sm { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem }
.sm h1 { font-size: 1.5rem } .sm h2 { font-size: 1.15rem; margin: 2rem 0 .6rem }
.sm code, .sm pre { font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace }
.sm article { border: 1px solid var(--line); border-left: 5px solid var(--bad);
  border-radius: 6px; padding: .8rem 1rem; margin: 1rem 0 }
.sm article.possible, .sm p.warning { border-left-color: var(--odd) }
.sm p.warning { border: 1px solid var(--line); border-left: 5px solid var(--odd);
  border-radius: 6px; padding: .6rem 1rem }
.sm h3 { margin: 0 0 .5rem; font-size: 1rem }
.sm .pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1rem }
.sm .pair > div { min-width: 0 }
.sm pre { border: 1px solid var(--line); border-radius: 4px; padding: .4rem 0; margin: .3rem 0;
  overflow-x: auto }
.sm pre span { display: block; padding: 0 .7rem; white-space: pre }
.sm pre .hit { background: #c0392b2b; font-weight: 600 }
.sm pre i { display: inline-block; width: 3.2em; font-style: normal; opacity: .55 }
.sm .at { font-size: .85rem; opacity: .8; overflow-wrap: anywhere }
.sm .advice { margin: .6rem 0 0 }
.sm table { border-collapse: collapse; width: 100% }
.sm th, .sm td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere }
.sm td.number { text-align: right; white-space: nowrap }
.sm .clash { color: var(--bad); font-weight: 600 } .sm .harmless { color: var(--good) }
.sm ul.tree, .sm ul.tree ul { list-style: none; padding-left: 1.1rem; margin: 0 }
.sm ul.tree > li { margin-left: -1.1rem } .sm summary { cursor: pointer }
.sm small { opacity: .7 }
"""


def document(diagnosis: Diagnosis, title: str) -> str:
    """A whole page that needs no other file."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{_text(title)}</title></head>"
        f"<body style='margin: 2rem'>{fragment(diagnosis, title)}</body></html>\n"
    )


def fragment(diagnosis: Diagnosis, title: str = "") -> str:
    """What a notebook shows."""
    parts = [f"<style>{_STYLE}</style><div class='sm'>"]
    if title:
        parts.append(f"<h1>{_text(title)}</h1>")
    parts.append(f"<p>{_summary(diagnosis)}</p>")
    if diagnosis.error:
        parts.append(f"<p class='warning'>The forward raised {_text(diagnosis.error)}</p>")
    parts += [_clash(clash) for clash in diagnosis.clashes]
    parts += [f"<p class='warning'>{_text(warning)}</p>" for warning in diagnosis.warnings]
    if diagnosis.reports:
        parts.append(f"<h2>In-place sites</h2>{_table(diagnosis)}")
    if diagnosis.modules:
        parts.append(f"<h2>Modules</h2>{_tree(diagnosis)}")
    return "".join(parts) + "</div>"


def _summary(diagnosis: Diagnosis) -> str:
    clashes, sites = len(diagnosis.clashes), len(diagnosis.reports)
    kind = "clash" if clashes else "harmless"
    return (
        f"<span class='{kind}'>{clashes} {'clash' if clashes == 1 else 'clashes'}</span>, "
        f"{sites} in-place {'site' if sites == 1 else 'sites'}, "
        f"{len(diagnosis.warnings)} {'warning' if len(diagnosis.warnings) == 1 else 'warnings'}."
    )


def _clash(clash: Clash) -> str:
    kind = "possible clash" if clash.possible else "silent clash" if clash.silent else "clash"
    others = "".join(
        f"<div class='at'>and at {_at(site)}: <code>{_text(site.source)}</code></div>"
        for site in clash.mutations[1:]
    )
    return (
        f"<article class='{'possible' if clash.possible else ''}'>"
        f"<h3><span class='clash'>{kind}</span>: {_text(clash.tensor)}</h3><div class='pair'>"
        f"<div>saved by{_excerpt(clash.saved_at)}{_call(clash.saved_called_at)}</div>"
        f"<div>overwritten at{_excerpt(clash.mutated_at)}{_call(clash.mutated_called_at)}"
        f"{others}</div></div>"
        f"<p class='advice'>{_text(clash.advice)} <small>Version {clash.expected_version} was "
        f"saved, {clash.found_version} is found.</small></p></article>"
    )


def _excerpt(site: Site) -> str:
    """The lines around a site, with the site's marked."""
    if not site.lineno:
        return f"<pre><span>{_text(site.source)}</span></pre>"
    lines = []
    for number in range(max(1, site.lineno - _AROUND), site.lineno + _AROUND + 1):
        source = linecache.getline(site.filename, number)
        if not source and number != site.lineno:
            continue  # beyond the end of the file
        source = source.rstrip("\n") or " "
        hit = " class='hit'" if number == site.lineno else ""
        lines.append(f"<span{hit}><i>{number}</i>{_text(source or site.source)}</span>")
    return f"<pre>{''.join(lines)}</pre><div class='at'>{_at(site)}</div>"


def _at(site: Site) -> str:
    module = f" in <b>{_text(site.module)}</b>" if site.module else ""
    return f"{_text(site.filename)}:{site.lineno}{module}"


def _call(line: Line | None) -> str:
    if line is None:
        return ""
    return (
        f"<div class='at'>called from {_text(line.filename)}:{line.lineno}: "
        f"<code>{_text(line.source)}</code></div>"
    )


def _table(diagnosis: Diagnosis) -> str:
    head = "<tr><th>verdict<th>calls<th>to swap<th>operation<th>module<th>line</tr>"
    return f"<table>{head}{''.join(_row(report) for report in diagnosis.reports)}</table>"


def _row(report: SiteReport) -> str:
    site = report.site
    size = size_text(report.bytes, digits=1) if report.bytes else "0"
    return (
        f"<tr><td class='{report.verdict}'>{report.verdict}<td class='number'>{report.calls}"
        f"<td class='number'>{size}<td><code>{_text(site.op)}</code><td>{_text(site.module)}"
        f"<td><code>{_text(site.source)}</code><div class='at'>{_text(site.filename)}:"
        f"{site.lineno}</div>{_call(report.called_at)}</tr>"
    )


def _tree(diagnosis: Diagnosis) -> str:
    """The module tree, opened where something clashes."""
    verdicts: dict[str, list[str]] = {}
    for report in diagnosis.reports:
        verdicts.setdefault(report.site.module, []).append(report.verdict)
    children: dict[str, list[str]] = {}
    kinds = {entry.path: entry.kind for entry in diagnosis.modules}
    for path in kinds:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)

    def item(path: str) -> str:
        own = verdicts.get(path, [])
        below = [v for p, found in verdicts.items() if _inside(p, path) for v in found]
        name = path.rpartition(".")[2] or "the model"
        label = f"<code>{_text(name)}</code> <small>{_text(kinds[path])}</small>"
        for verdict in ("clash", "harmless"):
            if verdict in own:
                label += f" <span class='{verdict}'>{own.count(verdict)} {verdict}</span>"
        inner = "".join(map(item, children.get(path, [])))
        if not inner:
            return f"<li>{label}</li>"
        opened = " open" if not path or "clash" in below else ""
        return f"<li><details{opened}><summary>{label}</summary><ul>{inner}</ul></details></li>"

    return f"<ul class='tree'>{item('')}</ul>"


def _inside(path: str, parent: str) -> bool:
    return not parent or path == parent or path.startswith(f"{parent}.")


def _text(value: str) -> str:
    return html.escape(value)
