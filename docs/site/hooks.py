"""Hooks of MkDocs: pages that are not in `docs/`, the command reference, and `llms.txt`."""

import posixpath
import re
from pathlib import Path
from typing import Any

from command_reference import build_reference_pages
from llms_txt import write_llms_txt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# Page of the site -> file of the repository.
REPOSITORY_PAGES = {
    "overview.md": "README.md",
    "ko/overview.md": "README.ko.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
REPOSITORY_FILES = ["CITATION.cff", "examples/colab-gpu.ipynb", "examples/quickstart.ipynb"]
SITE_PAGES = {file: page for page, file in REPOSITORY_PAGES.items()}
LINK = re.compile(r'(\]\(|src=")(?!\w+:|#)([^)#"\s]+)')
REFERENCE = build_reference_pages()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the command reference and the design notes to the navigation."""
    design_notes = sorted(
        path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/design/*.md")
    )
    _extend_section(config.nav, "Command reference", list(REFERENCE))
    _extend_section(config.nav, "Design notes", [page for page in design_notes if "README" not in page])
    return config


def _extend_section(nav: Any, title: str, pages: list[str]) -> None:
    """Append pages to the section of this title, at any depth."""
    for entry in nav:
        for name, content in entry.items() if isinstance(entry, dict) else ():
            if name == title:
                content.extend(pages)
            elif isinstance(content, list):
                _extend_section(content, title, pages)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and the linked files that are not in `docs/`."""
    for page, file in [*REPOSITORY_PAGES.items(), *((name, name) for name in REPOSITORY_FILES)]:
        files.append(File.generated(config, page, abs_src_path=str(ROOT / file)))
    for page, content in REFERENCE.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, **_: Any) -> None:
    """Keep the navigation for `llms.txt`."""
    config.extra["navigation"] = nav


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links between files of the repository to links between pages of the site."""
    source = page.file.src_uri
    if source in REFERENCE:
        return markdown
    path = REPOSITORY_PAGES.get(source, f"docs/{source}")

    def rewrite(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        site_path = SITE_PAGES.get(target, target.removeprefix("docs/"))
        return match[1] + posixpath.relpath(site_path, posixpath.dirname(source) or ".")

    return LINK.sub(rewrite, markdown)


def on_env(env: Any, config: MkDocsConfig, **_: Any) -> None:  # noqa: ARG001
    """Write `llms.txt` and the Markdown of each page, which it links; all pages have been read."""
    write_llms_txt(config, config.extra["navigation"])
