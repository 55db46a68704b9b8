"""The Python examples of the README and of the documentation run as they stand."""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


PAGES_WITH_EXAMPLES = [page for page in PAGES if examples(page.read_text(encoding="utf-8"))]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # of peft
@pytest.mark.parametrize(
    "page", PAGES_WITH_EXAMPLES, ids=[str(page.relative_to(ROOT)) for page in PAGES_WITH_EXAMPLES]
)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of one page run in order and may use each other's names.

    They run in an empty folder; one that begins with the comment ``# name.py`` is a file there,
    which is imported, so that examples that import it do not run it a second time.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = page.read_text(encoding="utf-8")
    if "import timm" in text:
        import_module("tests.foreign.images")  # a torchvision that was built for another torch
    namespace: dict[str, object] = {"__name__": "__example__"}
    for example in examples(text):
        if named := re.match(r"# (\w+)\.py\n", example):
            (tmp_path / f"{named[1]}.py").write_text(example, encoding="utf-8")
            # Two calls: the first notes that there was none, which is put back after the test.
            monkeypatch.setitem(sys.modules, named[1], ModuleType(named[1]))
            monkeypatch.delitem(sys.modules, named[1])
            namespace |= vars(import_module(named[1]))
            continue
        # Lines keep their numbers on the page, so that a traceback points there.
        offset = text[: text.index(example)].count("\n")
        exec(compile("\n" * offset + example, str(page), "exec"), namespace)


def test_the_readme_has_an_example() -> None:
    assert ROOT / "README.md" in PAGES_WITH_EXAMPLES


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_between_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
