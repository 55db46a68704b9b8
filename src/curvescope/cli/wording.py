"""The library's errors in the words of the command line.

The library names its functions and arguments; who typed a command knows options and files. One
table translates: what a message begins with, then arguments that stand anywhere in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PATH = r"\((?:folder=)?('.*?')\)"

# The beginning of a message, and what it becomes; the first that fits is taken.
_BEGINNINGS: tuple[tuple[str, str], ...] = (
    (r"Recipe: (?=(?:optimizer|schedule)=)", ""),
    (r"Recipe: (?=\w+)", "--"),
    (r"Confidence: sample \+ draws", "--delta and --draw-delta together"),
    (r"Confidence: sample", "--delta"),
    (r"Confidence: draws", "--draw-delta"),
    (r"Method: (?=\w+)", "--"),
    (r"posterior_method: name", "--method"),
    (r"certify: slack", "--slack"),
    (r"certify\(initial_state\)", "--initial"),
    (r"certify: the state must", "--initial must"),
    (r"certify\(prior_split\): must be", "--prior-split must be"),
    (r"certify\(prior_split\)", "--prior-split"),
    (r"certify\((data|model)\)", r"the \1"),
    (r"certify\(method='(.*?)'\)", r"--method \1"),
    (r"certify\(checkpoint\): ", ""),
    (r"analyze\(layers\)", "--layers"),
    (r"Problem\(loss\): loss", "--loss"),
    (r"Problem\(loss\)", "--loss"),
    (r"Problem\((data|model)\)", r"the \1"),
    (r"Problem(?:\.check)?: ", ""),
    (r"(?:dataset|data \w+|verify|fetch)(?:\('.*?'\))?: name must be", "a data set must be"),
    (r"(?:dataset|inventory|verify|fetch)(?:\('.*?'\))?: root must", "--root must"),
    (r"dataset\(('.*?')\): random labels need a seed.*", r"--data \1 needs --data-seed N"),
    (r"dataset\(('.*?')\)", r"--data \1"),
    (r"(?:verify|fetch)" + _PATH, r"\1"),
    (r"network\('.*?'\): init must", "--init must"),
    (r"network" + _PATH, r"network \1"),
    (r"RunDirectory" + _PATH + r"\.stage\('(.*?)'\)", r"\1, stage \2"),
    (r"(?:load_weights|load_network|RunDirectory|train)" + _PATH, r"\1"),
    (r"TraceRegularizer: weight", "--trace-weight"),
)  # fmt: skip

# Arguments, whose names nobody would take for a word, and hints that are Python.
_ANYWHERE: tuple[tuple[str, str], ...] = (
    (r",? (?:and not be combined with|or declare) prior_data", ""),
    (r"resume=True \(--resume\)", "--resume"),
    (r"name another folder, or remove this one", "name another folder with --out, or remove it"),
    (r"; make the model and use load_weights\(path, model\)", ""),
    (r"(?<!--)\bseed=(?=\d|None)", "--data-seed="),
    (r"\b(optimizer|schedule|epochs|loss|method|normalize)=", r"--\1="),
    (r"\b(?:recipe|data\.asked)\.(?=\w+ is )", "--"),
    (r"(?<![\w./'-])(?=(?:average_from|batch_size|weight_decay|prior_split|per_class)\b)", "--"),
    (r"(--[a-z_-]+)='?([^\s',;)]+)'?", r"\1 \2"),
    (r"load them with (?=--normalize none)", "train it anew with "),
    (r"; put the files into ", "; name their folder with --root, put them into "),
    (r"\.part-[^/']+/(?:[^/']+/)*(?=[^/']+')", ""),  # a file on its way to this place
    (r"choose another root$", "choose another --root"),
    (r"(cannot listen on .*); choose another --port$", r"\1; choose another --host or --port"),
    (r"\([^()]*allow_pickle[^()]*\)", "(it holds Python objects)"),
)
_WITHOUT_DATA = ("reproduce", "demo")  # data sets are not the user's choice there
_POSITIONAL = ("certify", "compare")  # the folder of a run is not an option there


def in_users_words(message: str, command: Sequence[str] = ()) -> str:
    """A message of the library as someone at the command line would put it.

    >>> in_users_words("Recipe: lr must be at least 0.0, got -1.0")
    '--lr must be at least 0.0, got -1.0'
    >>> in_users_words("Recipe: optimizer='gadam' needs average_from, the epoch after which …")
    '--optimizer gadam needs --average-from, the epoch after which …'
    >>> in_users_words("Problem(loss): loss must be one of 'mse', got 'hinge'")
    "--loss must be one of 'mse', got 'hinge'"
    >>> in_users_words("'a': another configuration (recipe.weight_decay is 0.0 there and 1.0 here)")
    "'a': another configuration (--weight-decay is 0.0 there and 1.0 here)"

    Args:
        message: One sentence.
        command: The first words of the command line.
    """
    if command and command[0] in _POSITIONAL:
        message = message.removeprefix("--run ")
    if command and command[0] in _WITHOUT_DATA:
        message = message.replace("dataset(", "data set (", 1)
    for pattern, words in _BEGINNINGS:
        message, found = re.subn(f"^{pattern}", words, message, count=1)
        if found:
            break
    for pattern, words in _ANYWHERE:
        message = re.sub(pattern, words, message)
    return re.sub(r"(?<![\w/'])--[a-z_]+", lambda option: option[0].replace("_", "-"), message)
