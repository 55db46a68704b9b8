"""The rules of docs/architecture.md, read from that page and held against the code."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest

import curvescope

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "curvescope"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


# Reading the page ---------------------------------------------------------------------


def table(page: str, *header: str) -> dict[str, list[str]]:
    """The rows of a Markdown table: code in the first cell -> the further cells."""
    _, found, rest = page.partition(f"| {' | '.join(header)} |\n")
    assert found, f"no table with the header {header}"
    rows = {}
    for line in rest.splitlines()[1:]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name.strip("`")] = cells
    return rows


def codes(cell: str) -> set[str]:
    return set(re.findall(r"`([\w.-]+)`", cell))


MAY_IMPORT = {
    folder: codes(cells[0]) for folder, cells in table(PAGE, "folder", "may import").items()
}
DEPENDENCIES = {
    name: codes(cells[0])
    for name, cells in table(PAGE, "dependency", "imported in", "reason").items()
}
OPTIONAL = {
    name: codes(cells[0])
    for name, cells in table(PAGE, "optional", "imported in", "reason").items()
}
MODULES = {"sklearn": "scikit-learn"}  # a module and the project that brings it, where they differ


# Reading the code ---------------------------------------------------------------------


def imports(source: str) -> Iterator[str]:
    """Every module that a file imports, wherever the statement stands; `from a import b` is a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (
                f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names
            )


def below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def breaches(folder: str, source: str) -> list[str]:
    """The imports of a file in ``folder`` that the page does not allow."""
    found = []
    for name in imports(source):
        top, _, inside = name.partition(".")
        if name.startswith(".") or name == "curvescope":
            found.append(name)
        elif top == "curvescope":
            allowed: Iterable[str] = {folder, *MAY_IMPORT[folder]}
            if not any(below(inside, prefix) for prefix in allowed):
                found.append(name)
        elif top in DEPENDENCIES:
            if DEPENDENCIES[top] and folder not in DEPENDENCIES[top]:
                found.append(name)
        elif MODULES.get(top, top) in OPTIONAL:
            if folder not in OPTIONAL[MODULES.get(top, top)]:
                found.append(name)
        # typing_extensions comes with torch and serves annotations on older Pythons.
        elif top not in sys.stdlib_module_names and top != "typing_extensions":
            found.append(name)
    return found


def folder_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


FILES = sorted(PACKAGE.rglob("*.py"))


def offenders(find: Callable[[str, str], Sequence[object]], *exempt: str) -> dict[str, object]:
    """What ``find`` reports of a folder and a source, for the files in which it finds something."""
    reports = {
        str(path.relative_to(PACKAGE)): find(folder_of(path), path.read_text(encoding="utf-8"))
        for path in FILES
        if folder_of(path) not in exempt
    }
    return {name: report for name, report in reports.items() if report}


def test_imports_go_one_way() -> None:
    """The root gathers public names from everywhere."""
    assert len(FILES) > 100
    assert offenders(breaches, "__init__") == {}


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("problem", "from curvescope.operators.base import LinearOperator"),
        ("problem", "from curvescope import record"),
        ("record", "import curvescope.operators"),
        ("operators", "def f():\n    from curvescope.spectra.eigensolver import eigenpairs"),
        ("spectra", "from curvescope.operators.algebra import add"),
        ("spectra", "from curvescope.operators import basement"),
        ("spectra", "if TYPE_CHECKING:\n    from curvescope.problem import Problem"),
        ("experiments", "import curvescope as cs"),
        ("experiments", "from curvescope.cli import main"),
        ("data", "from .embedded import load_embedded"),
        ("spectra", "from matplotlib import pyplot"),
        ("data", "from sklearn.manifold import TSNE"),
        ("training", "import pooch"),
        ("experiments", "import rich.console"),
        ("operators", "import typer"),
        ("operators", "import curvlinops"),
    ],
)
def test_a_wrong_import_is_found(folder: str, line: str) -> None:
    assert len(breaches(folder, line)) == 1


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("operators", "from curvescope.problem import Problem"),
        ("spectra", "from curvescope.operators.base import LinearOperator"),
        ("spectra", "from curvescope.vectors import Space"),
        ("cli", "from rich.table import Table"),
        ("figures", "from matplotlib.figure import Figure"),
        ("structure", "from sklearn.manifold import TSNE"),
        ("problem", "import torch.nn.functional as F"),
        ("problem", "from collections.abc import Callable"),
    ],
)
def test_a_right_import_is_accepted(folder: str, line: str) -> None:
    assert breaches(folder, line) == []


def test_only_one_folder_hashes() -> None:
    hashing = {"hashlib", "_hashlib", "_sha2", "_sha256", "_md5"}

    def hashes(folder: str, source: str) -> list[str]:
        return [name for name in imports(source) if name.partition(".")[0] in hashing]

    assert offenders(hashes, "identity") == {}
    assert {name.partition("/")[0] for name in offenders(hashes)} == {"identity"}


def hidden_writes(source: str) -> list[str]:
    """Writes to a tensor of which autograd is told nothing: by way of ``.data``, or worse."""

    def through_data(node: ast.AST) -> bool:
        while isinstance(node, ast.Subscript):
            node = node.value
        return (
            isinstance(node, ast.Attribute)
            and node.attr == "data"
            and ast.unparse(node.value) != "self"  # data sets and problems have a field `data`
        )

    found = []
    for node in ast.walk(ast.parse(source)):
        written: list[ast.AST] = []
        if isinstance(node, ast.Assign):
            written = [leaf for target in node.targets for leaf in ast.walk(target)]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
            written = list(ast.walk(node.target))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name == "setattr" and [ast.unparse(a) for a in node.args[1:2]] == ["'data'"]:
                found.append(ast.unparse(node))
            elif name.endswith("_") and not name.endswith("__"):
                written = [leaf for arg in (node.func, *node.args) for leaf in ast.walk(arg)]
        elif isinstance(node, ast.Attribute) and "version_counter" in node.attr:
            found.append(ast.unparse(node))
        found += [ast.unparse(node) for leaf in written if through_data(leaf)][:1]
    return found


def test_no_tensor_is_changed_behind_autograds_back() -> None:
    assert offenders(lambda folder, source: hidden_writes(source)) == {}


@pytest.mark.parametrize(
    "line",
    [
        "p.data = view",
        "p.data, q = a, b",
        "p.data += 1",
        "p.data[0] = 1",
        "for p.data in views: pass",
        "model.weight.data.copy_(w)",
        "model.weight.data[1:].zero_()",
        "layer.weight.data.t().mul_(2)",
        "torch._foreach_add_([p.data for p in params], g)",
        "nn.init.zeros_(layer.weight.data)",
        "setattr(p, 'data', w)",
        "torch._C._autograd._unsafe_set_version_counter([p], [0])",
        "with torch.autograd._unsafe_preserve_version_counter(p): pass",
    ],
)
def test_a_hidden_write_is_found(line: str) -> None:
    assert len(hidden_writes(line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "self.data = data",
        "samples = len(plan.data)",
        "p.copy_(w)",
        "labels = networks.data.y[:5]",
        "torch._foreach_copy_(params, averages)",
        "memory.numpy().data",
    ],
)
def test_an_open_write_is_accepted(line: str) -> None:
    assert hidden_writes(line) == []


# The page and the project -------------------------------------------------------------


def test_the_rules_have_no_cycle() -> None:
    order: list[str] = []
    for folder, allowed in MAY_IMPORT.items():
        above = {name.partition(".")[0] for name in allowed} - set(order)
        assert above == set(), f"{folder} may import {above}, which come later in the table"
        order.append(folder)


def test_every_folder_is_on_the_page() -> None:
    described = table(PAGE, "folder", "what it holds")
    present = {folder_of(path) for path in FILES} - {"__init__"}
    assert present == set(described) == set(MAY_IMPORT)


def test_every_dependency_has_its_reason_and_its_use() -> None:
    required = {
        re.split(r"[^\w.-]", line, maxsplit=1)[0]
        for line in metadata.requires("curvescope") or []
        if "extra ==" not in line
    }
    used = {name.partition(".")[0] for path in FILES for name in imports(path.read_text("utf-8"))}
    used = {MODULES.get(module, module) for module in used}
    assert required == set(DEPENDENCIES)
    assert required <= used
    assert set(OPTIONAL) <= used
    extras = " ".join(line for line in metadata.requires("curvescope") or [] if "extra ==" in line)
    assert all(name in extras for name in OPTIONAL)


# Importing ----------------------------------------------------------------------------

SIDE_EFFECTS = """
import sys, warnings, logging
import torch

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Block())

def state():
    return (
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(),
        torch.get_num_interop_threads(), torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(), torch.random.get_rng_state().tolist(),
        list(warnings.filters), list(logging.root.handlers),
    )

before = state()
{statement}
assert state() == before, "importing changed global state"
"""


def run_import(statement: str) -> subprocess.CompletedProcess[str]:
    blocked = {"backpack", "curvlinops", "hypothesis", "matplotlib", "mypy", "nngeometry"}
    blocked |= {"pyhessian", "pytest", "rich", "torchvision", "typer", "tqdm"}
    blocked |= {"sklearn", *OPTIONAL}
    script = SIDE_EFFECTS.format(blocked=blocked, statement=statement)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def test_importing_needs_the_core_alone_and_leaves_no_trace() -> None:
    finished = run_import("from curvescope import *")
    assert finished.returncode == 0, finished.stderr


def test_a_wrong_dependency_or_a_trace_is_found() -> None:
    statements = [
        "import curvlinops", "import rich", "torch.set_num_threads(3)", "torch.manual_seed(5)",
    ]  # fmt: skip
    trials = "".join(
        f"""
before = state()
try:
    {statement}
    print(state() != before)
except ModuleNotFoundError:
    print(True)
"""
        for statement in statements
    )
    finished = run_import(trials)
    assert finished.stdout.split() == ["True"] * len(statements), finished.stderr
    assert "importing changed global state" in run_import("torch.manual_seed(5)").stderr


# Public names -------------------------------------------------------------------------


def public_names() -> dict[str, object]:
    """Everything that is at the top or in one of its namespaces, by its full name."""
    names: dict[str, object] = {}
    for name in curvescope.__all__:
        value = getattr(curvescope, name)
        if isinstance(value, ModuleType):
            names |= {f"curvescope.{name}.{each}": getattr(value, each) for each in value.__all__}
        else:
            names[f"curvescope.{name}"] = value
    return names


def test_the_reference_is_the_one_that_is_generated() -> None:
    path = ROOT / "tools" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.page() == (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")


def test_every_public_name_is_on_the_page_and_has_a_docstring() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    paths = re.findall(r"^::: curvescope\.([\w.]+)$", page, flags=re.MULTILINE)
    shown = [attrgetter(path)(curvescope) for path in paths]
    for name, value in public_names().items():
        assert any(value is each for each in shown), f"{name} is not on the page"
        if callable(value):
            assert (value.__doc__ or "").strip(), f"{name} has no docstring"


def test_type_checkers_see_the_names_that_there_are() -> None:
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    lines = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: (line.module, alias.name) for line in lines for alias in line.names}
    assert set(seen) == set(curvescope.__all__)
    for name, (module, original) in seen.items():
        assert getattr(importlib.import_module(str(module)), original) is getattr(curvescope, name)


def test_the_public_names_fit_a_screen() -> None:
    assert dir(curvescope) == sorted(curvescope.__all__)
    assert len(dir(curvescope)) <= 60  # 15 lines of four columns


# Flags and switches ----------------------------------------------------------------------

SWITCHES = {
    "allow_tf32",
    "benchmark",
    "enable_flash_sdp",
    "enable_math_sdp",
    "enable_mem_efficient_sdp",
    "fp32_precision",
    "training",
}
SETTERS = {"sdpa_kernel", "set_float32_matmul_precision", "set_fastpath_enabled"}


def flags_set(source: str) -> list[str]:
    """Where a file sets the flags of modules or torch's switches."""
    tree = ast.parse(source)
    modules = {name.rpartition(".")[2] for name in imports(source)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = getattr(called, "attr", getattr(called, "id", ""))
            owner = getattr(getattr(called, "value", None), "id", None)
            if isinstance(called, ast.Attribute) and name in ("train", "eval"):
                if owner not in modules:  # a function of a module, not a method
                    found.append(f"{node.lineno}: .{name}(")
            elif name in SETTERS or (name.startswith("enable_") and name in SWITCHES):
                found.append(f"{node.lineno}: {name}(")
            elif name == "setattr" and ast.unparse(node.args[1]).strip("'\"") in SWITCHES:
                found.append(f"{node.lineno}: setattr")
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        for target in targets if isinstance(node, ast.Assign | ast.AugAssign) else ():
            for part in ast.walk(target):
                if isinstance(part, ast.Attribute) and part.attr in SWITCHES:
                    found.append(f"{node.lineno}: .{part.attr} =")
    return found


def test_flags_are_set_in_one_place() -> None:
    """`curvescope._state` alone puts modules in a mode and moves torch's switches."""
    assert offenders(lambda folder, source: flags_set(source), "_state") == {}


@pytest.mark.parametrize(
    "line",
    [
        "model.eval()",
        "model.net.train(False)",
        "copy.deepcopy(model).eval()",
        "module.training = True",
        "a.training, b.training = True, False",
        "setattr(module, 'training', flag)",
        "with sdpa_kernel(SDPBackend.MATH):\n    pass",
        "torch.set_float32_matmul_precision('high')",
        "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cudnn.benchmark = True",
        "torch.backends.cuda.enable_flash_sdp(False)",
    ],
)
def test_a_flag_set_elsewhere_is_seen(line: str) -> None:
    assert len(flags_set(line)) >= 1


@pytest.mark.parametrize(
    "line",
    [
        "from curvescope.training import loop\nloop.train(model, data)",
        "train(model, data)",
        "was = model.training",
        "found['tf32'] = torch.backends.cuda.matmul.fp32_precision == 'tf32'",
    ],
)
def test_reading_a_flag_is_no_setting(line: str) -> None:
    assert flags_set(line) == []
