"""Files that belong together appear together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from curvescope import io
from curvescope.errors import CurvescopeError


@contextmanager
def staged(folder: Path, *, last: str = "") -> Iterator[Path]:
    """A new folder whose files move to ``folder`` when the block ends well, and are gone otherwise.

    Args:
        folder: Where the files go; made if need be. What has their names there is replaced.
        last: The file that says that the others are there: removed first, moved last.

    Raises:
        CurvescopeError: If the folder cannot be made.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "page"
    >>> with staged(place, last="index") as fresh:
    ...     _ = (fresh / "index").write_text("see a"), (fresh / "a").write_text("here")
    >>> sorted(file.name for file in place.iterdir())
    ['a', 'index']
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    io.make_folder(folder)
    try:
        with TemporaryDirectory(dir=folder, prefix=".part-") as fresh:
            try:
                yield Path(fresh)
            except CurvescopeError as error:  # about the place that a file was on its way to
                error.where = error.where.replace(fresh, str(folder))
                raise
            if last:
                (folder / last).unlink(missing_ok=True)
            for file in sorted(Path(fresh).iterdir(), key=lambda file: file.name == last):
                file.replace(folder / file.name)
    finally:
        for place in made:
            if not any(place.iterdir()):
                place.rmdir()
