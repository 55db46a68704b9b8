"""The reader of CIFAR's pickles: it reads what they say, and runs nothing of what they could."""

import os
import pickle
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest

from curvescope.data.cifar import decode, read_batch
from curvescope.errors import CurvescopeError
from tests.data import builders
from tests.data.builders import NDARRAY, RECONSTRUCT, array, dtype, number, numbers, pickled, text

ROWS = np.random.default_rng(0).integers(0, 256, (6, 12), dtype=np.uint8)
CLASSES = np.array([3, 0, 9, 1, 1, 300])


@pytest.mark.parametrize("key", [b"labels", b"fine_labels"])
def test_it_agrees_with_the_standard_unpickler(key: bytes) -> None:
    raw = builders.batch(ROWS, CLASSES, key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy 2 warns of the module's old name
        standard = pickle.loads(raw, encoding="bytes")
    rows, labels = read_batch("here", raw)
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(rows, standard[b"data"])
    np.testing.assert_array_equal(labels, standard[key])


def test_fine_labels_are_preferred_and_fortran_order_is_understood() -> None:
    data = array(ROWS.shape, ROWS.tobytes(order="F"), fortran=True)
    coarse, fine = numbers([0] * 6), numbers([1, 2, 3, 4, 5, 6])
    raw = pickled({b"coarse_labels": coarse, b"fine_labels": fine, b"data": data})
    rows, labels = read_batch("here", raw)
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(labels, [1, 2, 3, 4, 5, 6])


def test_batches_are_joined_and_rows_become_images() -> None:
    files = [("a", builders.batch(ROWS, CLASSES)), ("b", builders.batch(ROWS[:2], CLASSES[:2]))]
    X, y = decode(files, (3, 2, 2))
    assert X.shape == (8, 3, 2, 2)
    assert X[1, 2, 1, 0] == ROWS[1, 2 * 4 + 1 * 2 + 0]
    np.testing.assert_array_equal(X[6:].reshape(2, -1), ROWS[:2])
    np.testing.assert_array_equal(y, [*CLASSES, *CLASSES[:2]])
    with pytest.raises(CurvescopeError, match="'a': has rows of 12 bytes, not 27"):
        decode(files, (3, 3, 3))


# Attacks ------------------------------------------------------------------------------


class Call:
    """Pickles into a call of any function."""

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (os.system, r"(posix|nt)\.system"),
        (subprocess.check_call, r"(subprocess|commands)\.check_call"),
        (eval, r"(builtins|__builtin__)\.eval"),
        (np.load, r"numpy\.load"),
    ],
)
def test_a_foreign_call_is_named_and_not_made(tmp_path: Path, protocol, function, name) -> None:
    command = f"touch {tmp_path / 'owned'}"
    argument = f"__import__('os').system({command!r})" if function is eval else command
    raw = pickle.dumps({"data": Call(function, argument)}, protocol=protocol)
    with pytest.raises(CurvescopeError, match=f"^here: asks for {name}, which has no business"):
        read_batch("here", raw)
    assert list(tmp_path.iterdir()) == []


def test_the_attack_would_work_on_the_standard_unpickler(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Call(os.mkdir, str(tmp_path / "owned"))))
    assert (tmp_path / "owned").is_dir()


STATE = b"(" + number(1) + b"t"
FOREIGN = {
    "another numpy function": (
        b"cnumpy.core.multiarray\nscalar\n" + dtype() + text(b"1") + b"\x86R",
        r"asks for numpy\.core\.multiarray\.scalar",
    ),
    "a dotted name": (
        b"\x80\x04cnumpy\nndarray.__class__\n",
        r"asks for numpy\.ndarray\.__class__",
    ),
    "objects": (array((1,), b"\x00" * 8, kind=dtype(b"O8")), "asks for the type"),
    "wider numbers": (array((1,), b"\x00" * 8, kind=dtype(b"f8", b"<")), "asks for the type"),
    "another byte order": (array((1,), b"a", kind=dtype(order=b">")), "gives unsigned bytes"),
    "a structured type": (
        array((1,), b"a", kind=dtype(fields=b"N)N")),
        "asks for a structured type",
    ),
    "a type without a name": (b"cnumpy\ndtype\n)R", "asks for the type"),
    "a sub-class": (
        RECONSTRUCT + dtype() + number(0) + b"\x85" + text(b"b") + b"\x87R",
        "another way",
    ),
    "a state for the class": (NDARRAY + STATE + b"b", r"gives a state to numpy\.ndarray"),
    "a state for the function": (RECONSTRUCT + STATE + b"b", "gives a state to numpy's recon"),
    "attributes for the function": (
        RECONSTRUCT + b"N}(" + text(b"__defaults__") + number(1) + b"u\x86b",
        "gives a state to numpy's recon",
    ),
    "too few bytes": (array((3, 2), b"abcde"), r"shape \(3, 2\) with 5 bytes"),
    "a negative size": (array((-2, -3), b"abcdef"), r"shape \(-2, -3\)"),
    "a state of its own": (
        RECONSTRUCT + NDARRAY + number(0) + b"\x85" + text(b"b") + b"\x87R" + STATE + b"b",
        "gives an array a state of another form",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_the_known_names_say_one_thing_only(name: str) -> None:
    value, message = FOREIGN[name]
    raw = pickled({b"labels": numbers([1]), b"data": value})
    with pytest.raises(CurvescopeError, match=f"^here: .*({message})"):
        read_batch("here", raw)


# Damage -------------------------------------------------------------------------------

WHOLE = builders.batch(ROWS, CLASSES)


@pytest.mark.parametrize("length", [0, 1, 2, 20, 60, len(WHOLE) // 2, len(WHOLE) - 1])
def test_a_cut_pickle_is_refused(length: int) -> None:
    with pytest.raises(CurvescopeError, match=r"^here: is not a complete batch of CIFAR \("):
        read_batch("here", WHOLE[:length])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"hello\n", "is not a complete batch"),
        (b"\x80\x02P12\n.", "is not a complete batch"),  # a persistent identifier
        (b"\x80\x02" + NDARRAY + b")\x81.", "is not a complete batch"),  # NEWOBJ
        (b"\x80\x02" + numbers([1]) + b".", "has an array of rows and a list of labels"),
        (pickled({b"labels": numbers([1])}), "has an array of rows and a list of labels"),
        (pickled({b"data": array((1, 1), b"a")}), "has an array of rows and a list of labels"),
        (
            pickled({b"labels": numbers([1]), b"data": array((1,), b"a")}),
            "has an array of rows and a list of labels",
        ),
        (
            pickled({b"labels": numbers([1, 2]), b"data": array((1, 1), b"a")}),
            "an integer label for each of its 1 rows",
        ),
        (
            pickled({b"labels": b"](" + text(b"x") + b"e", b"data": array((1, 1), b"a")}),
            "an integer label for each of its 1 rows",
        ),
    ],
)
def test_a_foreign_pickle_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(CurvescopeError, match=f"^here: .*{message}"):
        read_batch("here", raw)
