"""MkDocs hooks: pages may show pictures of ``results/``, which lie beside ``docs/``.

On GitHub ``../results/x.svg`` is right; on the site the picture is copied in and the link follows.
Owns nothing else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
_SHOWN = re.compile(r"\]\(\.\./(results/[A-Za-z0-9_./-]+\.svg)\)")


def on_files(files: Files, config: Any) -> Files:
    """Every picture of results/ that a page of the top folder shows becomes a file of the site."""
    shown = {
        name
        for page in files.documentation_pages()
        for name in _SHOWN.findall(page.content_string)
        if (ROOT / name).is_file()
    }
    for name in sorted(shown):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The link, as the site has it."""
    return _SHOWN.sub(r"](\1)", markdown)
