"""MkDocs hooks: the pages of the site that are not files below `docs/`, the links to them, and inline figures.

The same Markdown is read in two places. In a checkout, `[resume](../examples/resume.py)` opens the file. On the site
the file is a page, so the link has to lead there. Each function here is called by MkDocs, by its name.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

# Files of the repository that are pages of the site, with the place of the page.
PAGES = {
    "ARCHITECTURE.md": "inside/architecture.md",
    "CONTRIBUTING.md": "inside/contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "inside/security-reports.md",
    "bench/README.md": "inside/benchmarks.md",
}
CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```|`[^`\n]*`)|(?P<text>\[[^\]]*\])\((?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL
)
SHIM = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"></script>')
SEARCH = "theme/search-from-disk.js"
NOT_RUN = re.compile(r"^(\s*```python) notest$", re.MULTILINE)
IMAGE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="[^"]*figures/(?P<name>[\w-]+)\.svg"\s*/?>')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, place in pages().items():
        text = (ROOT / source).read_text()
        if source.endswith(".py"):
            text = _example(Path(source).name, text)
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the pages of the site, and take away what is written for the tests."""
    here = page.file.src_uri
    by_page = {place: source for source, place in pages().items()}
    source = by_page.get(here, f"docs/{here}")
    return NOT_RUN.sub(r"\1", CODE_OR_LINK.sub(lambda link: _led(link, source, here), markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put figures into the page itself, so that they take the colours that the reader has chosen: light or dark."""
    return IMAGE.sub(_inline, html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load our own script in the place of the one that the theme would load from another host."""
    up = "../" * page.file.dest_uri.count("/")
    return SHIM.sub(f'<script src="{up}{SEARCH}"></script>', output)


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for 404.html, which is shown at any address."""
    return SHIM.sub(f'<script src="/{SEARCH}"></script>', output_content)


def pages() -> dict[str, str]:
    """The files of the repository that become pages, by path, with the page's path below `docs/`."""
    return PAGES | {f"examples/{file.name}": f"examples/{file.stem}.md" for file in _examples()}


def _examples() -> Iterator[Path]:
    yield from sorted((ROOT / "examples").glob("*.py"))


def _example(name: str, code: str) -> str:
    first = (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0]
    return f"# {name}\n\n{first}\n\n```python\n{code}```\n\nRun it: `python examples/{name}`\n"


def _led(link: re.Match[str], source: str, here: str) -> str:
    if link["code"] is not None or "://" in link["target"] or link["target"].startswith(("#", "mailto:")):
        return link[0]
    path, hash_mark, anchor = link["target"].partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    place = pages().get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
    if place is None:
        if not (ROOT / target).exists():
            return link[0]  # dead: MkDocs says so
        return link["text"][1:-1]  # a file without a page, such as a license: the name is enough
    return f"{link['text']}({posixpath.relpath(place, posixpath.dirname(here) or '.')}{hash_mark}{anchor})"


def _inline(image: re.Match[str]) -> str:
    svg = (ROOT / "docs/figures" / f"{image['name']}.svg").read_text()
    return f'<figure class="drawn" role="img" aria-label="{image["alt"]}">{svg}</figure>'
