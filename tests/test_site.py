"""The documentation as a site: it is complete, its links work, and its search works from the file system."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from chromium import get_requested_urls, needs_browser, set_viewport, to_file_url

from bertkit.cli.app import app

pytest.importorskip("mkdocs", reason="the site needs mkdocs-material (extra docs)")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
COMMANDS = typer.main.get_command(app).commands
LINK = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\): (.+)$")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. A broken link, or a page that is not in the navigation, fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


def list_pages(site, suffix):
    return sorted(
        path.relative_to(site).as_posix() for path in site.rglob(f"*{suffix}") if path.stem != "404"
    )


def list_parameters(command):
    """Return the flags and the names of the arguments of a command and its subcommands."""
    commands = getattr(command, "commands", {"": command}).values()
    parameters = [parameter for item in commands for parameter in item.params]
    flags = {flag for item in parameters for flag in (*item.opts, *item.secondary_opts) if flag[0] == "-"}
    return flags | {item.name.upper() for item in parameters if item.param_type_name == "argument"}


def test_the_reference_of_each_command_lists_its_arguments_and_flags(site):
    assert len(COMMANDS) > 20
    for name, command in COMMANDS.items():
        page = (site / "reference" / f"{name}.md").read_text("utf-8")
        terms = re.findall(r"^`([^`]+)`$", page, re.MULTILINE)
        listed = {word for term in terms for word in re.split(r"[\s,/\[\]{}.]+", term)}
        assert list_parameters(command) <= listed | {word.upper() for word in listed}, name
        assert "[default" not in page


def test_the_reference_shows_types_help_and_defaults(site):
    page = (site / "reference" / "classify.md").read_text("utf-8")
    assert "`--warmup FLOAT`\n:   Warmup steps, " in page
    assert "if below 1. (default: 0.1)" in page
    assert "(default: bert-base-uncased with an accelerator, else minilm)" in page
    page = (site / "reference" / "study.md").read_text("utf-8")
    assert page.count("`--folds ") == 1  # an option of all subcommands
    assert page.count("`--squad ") == 1
    html = (site / "reference" / "fill-mask.html").read_text("utf-8")
    assert "for each [MASK] in a text" in html


def test_llms_txt_has_the_form_of_llmstxt_org_and_lists_every_page(site):
    text = (site / "llms.txt").read_text("utf-8")
    title, summary, _, *sections = text.split("\n\n")
    assert title == "# bertkit"
    assert summary.startswith("> ")
    assert len(sections) % 2 == 0
    listed = []
    for heading, links in zip(sections[::2], sections[1::2], strict=True):
        assert heading.startswith("## ")
        for line in links.strip().splitlines():
            match = LINK.match(line)
            assert match, line
            listed.append(match[2])
    assert sorted(listed) == list_pages(site, ".md")
    assert len(listed) == len(list_pages(site, ".html"))
    assert "- [bertkit swag](swag.md): `bertkit swag` fine-tunes a model for multiple choice" in text


def test_links_of_the_markdown_pages_lead_to_files_of_the_site(site):
    for name in list_pages(site, ".md"):
        text = re.sub(r"```.*?```", "", (site / name).read_text("utf-8"), flags=re.DOTALL)
        targets = re.findall(r'(?:\]\(|src=")(?!\w+:|#)([^)#"\s]+)', text)
        assert [target for target in targets if not (site / name).parent.joinpath(target).exists()] == [], (
            name
        )


def test_no_markdown_remains_in_paragraphs(site):
    """Python-Markdown requires a blank line before a list, and four spaces before a nested list."""
    for name in list_pages(site, ".md"):
        text = re.sub(r"```.*?```", "", (site / name).read_text("utf-8"), flags=re.DOTALL)
        assert re.findall(r"^ {1,3}[*-] .*", text, re.MULTILINE) == [], name
    for name in list_pages(site, ".html"):
        text = re.sub(r"<pre.*?</pre>", "", (site / name).read_text("utf-8"), flags=re.DOTALL)
        without_inline_tags = re.sub(r"</?(?:a|code|em|img|span|strong)\b[^>]*>", "", text)
        for paragraph in re.findall(r"<(?:p|li)>([^<]*)", without_inline_tags):
            assert not re.search(r"^\s*(?:[*-] |\d+\. [A-Z]|\|.*\|$|```)", paragraph, re.MULTILINE), name


@pytest.fixture
def search(driver, site):
    """Return a function that searches for words, and returns the titles of the found pages."""

    def search(words):
        driver.get(to_file_url(site / "index.html"))
        driver.find_element("css selector", ".md-search__input").send_keys(words)
        for _ in range(100):
            time.sleep(0.1)
            results = driver.find_elements("css selector", ".md-search-result__item h1")
            status = driver.find_element("css selector", ".md-search-result__meta").text
            if results or status == "No matching documents":
                break
        return [title.text for title in results]

    set_viewport(driver)
    get_requested_urls(driver)
    driver.get_log("browser")
    yield search
    assert [url for url in get_requested_urls(driver) if not url.startswith("file:")] == []
    assert driver.get_log("browser") == []


@needs_browser
def test_search_finds_words_flags_and_korean_without_a_network(search):
    assert "Batches" in search("gradient accumulation")
    assert "Reference: bertkit classify" in search("--layer-decay")
    assert search("학습률")  # the texts have it with particles, such as 학습률을
    assert search("xyzzy") == []


@needs_browser
@pytest.mark.parametrize("page", ["index", "overview", "benchmarks", "reference/study", "ko/README"])
def test_pages_fit_on_a_phone(driver, site, page):
    set_viewport(driver, width=390, height=800)
    driver.get(to_file_url(site / f"{page}.html"))
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390
