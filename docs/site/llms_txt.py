"""`llms.txt`: the list of pages in the form of llmstxt.org, with the Markdown of each page."""

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

MAX_DESCRIPTION = 200  # characters
INTRODUCTION = """\
# {name}

> {description}

bertkit is a command and a Python package (`pip install bertkit`, `import bertkit`). Most commands have a
function of the same name in Python, with the flags as keyword arguments.
"""


def write_llms_txt(config: MkDocsConfig, navigation: Navigation) -> None:
    """Write `llms.txt`, and next to the HTML of each page its Markdown."""
    site = Path(config.site_dir)
    for page in navigation.pages:
        path = site / page.file.src_uri
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.markdown or "", "utf-8")
    (site / "llms.txt").write_text(build_llms_txt(config, navigation), "utf-8")


def build_llms_txt(config: MkDocsConfig, navigation: Navigation) -> str:
    """Return the title, the summary, and a section of links for each section of the navigation."""
    introduction = INTRODUCTION.format(name=config.site_name, description=config.site_description)
    base_url = config.site_url or ""
    loose_pages = [item for item in navigation.items if isinstance(item, Page)]
    sections = {"Documentation": loose_pages} | {
        item.title: list(_list_pages(item)) for item in navigation.items if isinstance(item, Section)
    }
    blocks = [
        "\n".join([f"## {title}", "", *(_format_link(page, base_url) for page in pages)])
        for title, pages in sections.items()
    ]
    return "\n\n".join([introduction.rstrip(), *blocks]) + "\n"


def _list_pages(section: Section) -> Iterator[Page]:
    for item in section.children:
        if isinstance(item, Section):
            yield from _list_pages(item)
        elif isinstance(item, Page):
            yield item


def _format_link(page: Page, base_url: str) -> str:
    return f"- [{page.title}]({base_url}{page.file.src_uri}): {describe(page.markdown or '')}"


def describe(markdown: str) -> str:
    """Return the first sentences of a page: of the first paragraph that is prose, without markup."""
    without_code = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    without_links = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", without_code).replace("\\", "")
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", without_links))
    prose = next((text for text in paragraphs if re.match(r"[\w`*].*[.:]", text)), "")
    description = ""
    for sentence in re.split(r"(?<!al\.)(?<=[.:?]) ", prose):
        if description and len(description) + len(sentence) > MAX_DESCRIPTION:
            break
        description = f"{description} {sentence}".strip()
    return description.rstrip(":")
