"""These hooks let mkdocs build the site from pages that are written for a checkout.

Pages outside docs/ (README.md, ...) become pages of the site. A link to a file that is no page, such as a test, keeps
its words only: the site does not know where the sources are.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT: Final = Path(__file__).parents[1]
# Page of the checkout outside docs/ -> its page in the site.
OUTSIDE: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
SOURCES: Final = {page: source for source, page in OUTSIDE.items()}
LINK: Final = re.compile(r"(?<!!)\[((?:[^][]|\[[^]]*\])+)\]\(([^)\s]+)\)")  # the words may have brackets
# What a browser fetches for a page by itself, from another host.
LOADED: Final = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)="?((?:https?:)?//[^"\s>]+)""")
PICTURE: Final = re.compile(r"(!\[[^]]*\]\()([^)\s]+)\)")


def anchor(heading: str, separator: str = "-") -> str:
    """Return the name of a heading in a link as code hosts make it: the pages' links are written for these."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    """Let headings have the names that the pages' links use."""
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": anchor}
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_post_build(config: Any) -> None:
    """Refuse a site that would load something from another host: it has to work on a cluster without internet."""
    for path in Path(config.site_dir).rglob("*.html"):
        if loaded := LOADED.findall(path.read_text()):
            raise PluginError(f"{path} loads {', '.join(loaded)}")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links between files of the checkout into links between pages of the site."""
    uri = page.file.src_uri
    source = SOURCES.get(uri, f"docs/{uri}")
    if uri.startswith("evidence/") or uri == "changelog.md":
        page.meta["search"] = {"boost": 0.2}  # whoever searches wants to do something

    def target(link: str) -> str | None:
        """The link in the site; None where it leads to no page or picture of it."""
        name, _, part = link.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(source), name)) if name else source
        site_path = OUTSIDE.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(site_path) is None:
            return None
        relative = os.path.relpath(site_path, os.path.dirname(uri) or ".")
        return f"{relative}#{part}" if part else relative

    def replace_link(match: re.Match[str]) -> str:
        words, link = match.groups()
        if "://" in link:
            return match[0]
        site_link = target(link)
        return f"[{words}]({site_link})" if site_link else words

    text = PICTURE.sub(lambda match: f"{match[1]}{target(match[2]) or match[2]})", markdown)
    text = LINK.sub(replace_link, text)
    return re.sub(r"^(\s*```sh) run$", r"\1", text, flags=re.MULTILINE)  # a mark for the tests of the tutorial
