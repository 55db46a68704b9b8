"""Files: written whole or not at all, read without executing anything and without trusting them.

``files`` replaces files in one step and opens nothing but regular files; ``text`` and ``tensors``
are JSON and safetensors, ``arrays`` numpy's archives, read strictly; ``codec`` turns frozen
dataclasses into the first two and back, by their annotations; ``stored`` is a dataclass in a file,
with its type, format and checksum; ``checkpoint`` is the state of unfinished work, which goes on
only where it belongs; ``folder`` and ``lock`` keep a folder for one process, and a run directory
for one configuration.
"""

from curvescope.io.arrays import array_headers, read_arrays
from curvescope.io.checkpoint import Checkpoint, Saved
from curvescope.io.codec import decode, encode, readable
from curvescope.io.differences import differences, in_words
from curvescope.io.files import (
    PathLike,
    atomic,
    atomic_all,
    flush,
    make_folder,
    part_files,
    read_bytes,
    remove_parts,
    writes,
    written_by,
    written_by_each,
)
from curvescope.io.folder import claimed, held, refuse_difference, refuse_others
from curvescope.io.lock import Busy, busy, locked
from curvescope.io.stored import (
    append_line,
    header,
    line,
    load,
    load_lines,
    pack,
    save,
    tensors_beside,
    unpack,
)
from curvescope.io.tensors import (
    NOTES,
    check_tensors,
    notes_of,
    read_notes,
    read_tensors,
    tensor_bytes,
    write_tensors,
)
from curvescope.io.text import (
    json_text,
    parse_json,
    parse_toml,
    read_json,
    read_json_lines,
    write_json,
)

__all__ = [
    "NOTES",
    "Busy",
    "Checkpoint",
    "PathLike",
    "Saved",
    "append_line",
    "array_headers",
    "atomic",
    "atomic_all",
    "busy",
    "check_tensors",
    "claimed",
    "decode",
    "differences",
    "encode",
    "flush",
    "header",
    "held",
    "in_words",
    "json_text",
    "line",
    "load",
    "load_lines",
    "locked",
    "make_folder",
    "notes_of",
    "pack",
    "parse_json",
    "parse_toml",
    "part_files",
    "read_arrays",
    "read_bytes",
    "read_json",
    "read_json_lines",
    "read_notes",
    "read_tensors",
    "readable",
    "refuse_difference",
    "refuse_others",
    "remove_parts",
    "save",
    "tensor_bytes",
    "tensors_beside",
    "unpack",
    "write_json",
    "write_tensors",
    "writes",
    "written_by",
    "written_by_each",
]
