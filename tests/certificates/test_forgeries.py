"""Certificates that are not what they say: each is refuted or refused, whatever fits together."""

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from curvescope import io
from curvescope.certificates import Certificate, Confidence, PriorGrid, certify, posterior_method
from curvescope.certificates.bound import risk_bound
from curvescope.certificates.certificate import posterior_file
from curvescope.certificates.evaluate import Draws, Plan
from curvescope.certificates.posterior import Posterior
from curvescope.certificates.verification import told_apart
from curvescope.errors import CurvescopeError
from curvescope.identity import file_digest
from curvescope.io.checksum import checksum
from tests.certificates.models import blobs, convnet, mlp, normal, state_of, train

quick = posterior_method("local", epochs=20, batch_size=50)


class Case(NamedTuple):
    certificate: Certificate
    model: nn.Module
    initial: dict[str, Tensor]
    data: tuple[Tensor, Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def case() -> Case:
    torch.manual_seed(0)
    data = blobs(400, seeded())
    model = mlp(5, 6, 1)
    initial = state_of(model)
    train(model, data)
    certificate = certify(model, initial, data, generator=seeded(), method=quick, slack=0.01)
    return Case(certificate, model, initial, data)


@pytest.fixture(scope="module")
def pictures() -> Case:
    """A network whose draws are blocks of examples."""
    torch.manual_seed(0)
    g = seeded(4)
    y = torch.arange(150) % 3
    pattern = normal(3 * 36, g).view(3, 1, 6, 6)
    X = 2 * pattern[y] + 0.5 * normal(150 * 36, g).view(150, 1, 6, 6)
    model = convnet()
    initial = state_of(model)
    train(model, (X, y), steps=60)
    method = posterior_method("local", epochs=4, batch_size=50)
    certificate = certify(model, initial, (X, y), generator=seeded(), method=method, slack=0.06)
    return Case(certificate, model, initial, (X, y))


def verdict(forged: Certificate, case: Case, **others: Any) -> str:
    """With everything that can be given."""
    known = {"model": case.model, "initial_state": case.initial, "data": case.data, **others}
    return forged.verify(generator=seeded(3), **known).verdict


def consistent(forged: Certificate) -> Certificate:
    """The same with every number that follows from others, as a forger would compute it."""
    c = forged
    names = [block.name for block in c.layout]
    prior = tuple(
        dataclasses.replace(
            term,
            variance=c.grid.variance(term.j),
            penalty=c.grid.penalty(term.j),
            kl=sum(c.posterior.kl(names.index(n), c.grid.variance(term.j)) for n in term.layers),
        )
        for term in c.prior
    )
    found = risk_bound(
        c.draws.mean, c.draws.count, [t.kl for t in prior], [t.penalty for t in prior],
        samples=c.samples, confidence=c.confidence, form=c.form,
    )  # fmt: skip
    return dataclasses.replace(
        c, prior=prior, terms=found.terms, error_bound=found.error_bound, bound=found.value
    )


def changed(c: Certificate, part: str, **values: Any) -> Certificate:
    """One part with other values, and all that follows from them."""
    return consistent(dataclasses.replace(
        c, **{part: dataclasses.replace(getattr(c, part), **values)}
    ))  # fmt: skip


def with_prior(c: Certificate, share: float, to: Tensor | None = None) -> Certificate:
    """The prior's mean moved toward the posterior's, and the best grid points for that."""
    q = c.posterior
    mean = q.mean if to is None else to
    moved = dataclasses.replace(q, prior_mean=torch.lerp(q.prior_mean, mean, share))
    return consistent(best(dataclasses.replace(c, posterior=moved)))


def best(c: Certificate) -> Certificate:
    """The grid points that the forger likes most."""
    prior = tuple(
        dataclasses.replace(
            term,
            j=min(
                range(1, 150),
                key=lambda j, i=i: c.posterior.kl(i, c.grid.variance(j)) + c.grid.penalty(j),
            ),
        )
        for i, term in enumerate(c.prior)
    )
    return dataclasses.replace(c, prior=prior)


def fewer_errors(c: Certificate, share: float, times: int) -> Certificate:
    errors = round((1 - share) * times * c.draws.errors)
    return changed(c, "draws", errors=errors, count=times * c.draws.count)


def more_examples(c: Certificate, n: int) -> Certificate:
    request = dataclasses.replace(c.request, samples=n)
    return changed(dataclasses.replace(c, request=request), "source", samples=n)


def claimed_split(c: Certificate, case: Case) -> Certificate:
    """The prior is the trained network, said to have been trained on half of the examples."""
    from curvescope.certificates.blocks import Layout

    trained = Layout(c.layout).flatten(case.model.state_dict())
    moved = with_prior(c, 1.0, trained)
    request = dataclasses.replace(c.request, prior_split=0.5)
    source = dataclasses.replace(c.source, samples=200, prior_samples=200, seed=5)
    return consistent(dataclasses.replace(moved, request=request, source=source))


def regrouped(c: Certificate) -> Certificate:
    """Two layers with one prior, which the method has not, so that only one place is paid for."""
    prior = (dataclasses.replace(c.prior[0], layers=("0", "2")),)
    return consistent(dataclasses.replace(c, prior=prior))


FORGERIES: dict[str, Callable[[Case], Certificate]] = {
    "6,000 examples": lambda t: more_examples(t.certificate, 6_000),
    "a billion examples": lambda t: more_examples(t.certificate, 10**9),
    "more examples, not in all": lambda t: changed(t.certificate, "source", samples=6_000),
    "the prior is the posterior": lambda t: with_prior(t.certificate, 1.0),
    "the prior, 90 % of the way": lambda t: with_prior(t.certificate, 0.9),
    "the prior, 1 % of the way": lambda t: with_prior(t.certificate, 0.01),
    "5 % fewer errors, more draws": lambda t: fewer_errors(t.certificate, 0.05, 50),
    "10 % fewer errors, more draws": lambda t: fewer_errors(t.certificate, 0.1, 50),
    "5 % fewer errors": lambda t: fewer_errors(t.certificate, 0.05, 1),
    "no errors": lambda t: fewer_errors(t.certificate, 1.0, 1),
    "more draws": lambda t: fewer_errors(t.certificate, 0.0, 100),
    "another seed of the draws": lambda t: changed(t.certificate, "draws", seed=1),
    "a split only claimed": lambda t: claimed_split(t.certificate, t),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_whose_numbers_fit_together_is_refuted(case: Case, name: str, tmp_path) -> None:
    forged = FORGERIES[name](case)
    assert forged != case.certificate or name.startswith("the prior")
    assert forged.verify().verdict == "consistent"  # nobody can tell from the file alone
    forged.save(tmp_path / "forged.json")
    loaded = Certificate.load(tmp_path / "forged.json")
    assert verdict(loaded, case) == "refuted"


def test_the_honest_one_is_verified(case: Case, pictures: Case) -> None:
    assert verdict(case.certificate, case) == "verified"
    assert verdict(pictures.certificate, pictures) == "verified"
    assert consistent(case.certificate) == case.certificate


def test_fewer_errors_with_a_slack_that_gives_as_many_draws_are_refuted(case: Case) -> None:
    """The forger makes slack, seed and number of draws fit, and lies about the errors alone."""
    c = case.certificate
    plan = Plan(case.model, c.posterior, case.data, c.draws.seed, slack=0.004, delta=0.01)
    request = dataclasses.replace(c.request, slack=0.004)
    errors = round(0.95 * c.draws.mean * plan.count)
    forged = changed(
        dataclasses.replace(c, request=request), "draws", count=plan.count, errors=errors
    )
    assert forged.bound < c.bound
    assert verdict(forged, case) == "refuted"


@pytest.mark.parametrize("share", [0.1, 0.2])
def test_draws_of_another_device_are_refuted_by_fresh_ones(case: Case, share: float) -> None:
    """Elsewhere the same seed gives other draws, so that only fresh ones can tell."""
    forged = changed(fewer_errors(case.certificate, share, 50), "draws", device="cuda")
    assert verdict(forged, case) == "refuted"


def test_honest_draws_of_another_device_are_consistent_and_no_more(case: Case) -> None:
    forged = changed(case.certificate, "draws", device="cuda")
    result = forged.verify(
        model=case.model, initial_state=case.initial, data=case.data, generator=seeded(3)
    )
    assert result.verdict == "consistent"
    assert any("on a device of type cuda" in missing for missing in result.unchecked)


def test_blocks_passed_as_single_examples_are_refuted(pictures: Case) -> None:
    c = pictures.certificate
    assert c.draws.block == 100
    forged = changed(c, "draws", count=100 * c.draws.count, block=1)
    assert forged.bound < c.bound
    assert verdict(forged, pictures) == "refuted"


@pytest.mark.parametrize(
    "method",
    [
        {"grid": PriorGrid(precision=1.0, largest=10.0)},
        {"form": "seeger"},
        {"layer_priors": False},
        {"name": "mine"},
    ],
)
def test_settings_that_may_be_an_afterthought_are_never_verified(case: Case, method) -> None:
    """Nobody can tell when a grid was chosen; so the verdict names it, and the statement prints it.

    Changed alone, without the numbers that follow from it, a grid or an inequality is refuted.
    """
    c = case.certificate
    other = dataclasses.replace(c.method, **method)
    bare = dataclasses.replace(c, request=dataclasses.replace(c.request, method=other))
    if "name" not in method:
        assert verdict(bare, case) == "refuted"
    if not other.layer_priors:
        joined = dataclasses.replace(c.prior[0], layers=("0", "2"))
        bare = dataclasses.replace(bare, prior=(joined,))
    forged = consistent(best(bare))
    result = forged.verify(
        model=case.model, initial_state=case.initial, data=case.data, generator=seeded(3)
    )
    assert result.verdict == "consistent"
    assert len(result.unchecked) == 1
    assert f"{forged.grid.largest} exp(−j/{forged.grid.precision})" in forged.statement
    assert forged.form.title() in forged.statement


def test_groups_of_layers_that_the_method_has_not_are_refuted(case: Case) -> None:
    forged = regrouped(case.certificate)
    failed = [check.what for check in forged.verify().checks if not check.passed]
    assert failed == ["layers"]


@pytest.mark.parametrize("sample", [0.98, 0.6])
def test_a_risk_above_one_half_is_no_confidence(sample: float) -> None:
    with pytest.raises(CurvescopeError, match=r"sample \+ draws must be at most 0.5"):
        Confidence(sample, 0.01)


def test_a_risk_that_was_changed_is_refuted_or_stands_in_the_statement(case: Case) -> None:
    c = case.certificate
    for sample in (0.4, 1e-300):
        confidence = Confidence(sample, 0.01)
        request = dataclasses.replace(c.request, confidence=confidence)
        bare = dataclasses.replace(c, request=request)
        assert verdict(bare, case) == "refuted"
        assert f"at least {confidence.level} over" in consistent(bare).statement
        assert f"(risk {sample})" in bare.statement
    draws = dataclasses.replace(c.request, confidence=Confidence(0.025, 0.4))
    forged = consistent(dataclasses.replace(c, request=draws))
    assert verdict(forged, case) == "refuted"  # fewer draws follow from it


def other_network(case: Case) -> nn.Module:
    torch.manual_seed(1)
    return train(mlp(5, 6, 1), case.data, steps=20)


@pytest.mark.parametrize(
    "given",
    [
        lambda t: {"model": other_network(t)},
        lambda t: {"model": mlp(5, 7, 1)},
        lambda t: {"initial_state": {k: v + 1e-9 for k, v in t.initial.items()}},
        lambda t: {"initial_state": state_of(t.model)},
        lambda t: {"initial_state": {k: v * torch.nan for k, v in t.initial.items()}},
        lambda t: {"data": (t.data[0], 1 - t.data[1])},
        lambda t: {"data": (t.data[0] + 1e-12, t.data[1])},
        lambda t: {"data": (t.data[0].flip(0), t.data[1].flip(0))},
        lambda t: {"data": (t.data[0][1:], t.data[1][1:])},
        lambda t: {"data": tuple(torch.cat([part, part]) for part in t.data)},
    ],
)
def test_what_was_not_certified_is_refuted(case: Case, given) -> None:
    assert verdict(case.certificate, case, **given(case)) == "refuted"


def test_without_initial_weights_the_word_is_consistent(case: Case) -> None:
    for moved in (case.certificate, with_prior(case.certificate, 1.0)):
        result = moved.verify(model=case.model, data=case.data, generator=seeded(3))
        assert result.verdict == "consistent"
        assert any("prior mean" in missing for missing in result.unchecked)
    without = case.certificate.verify(model=case.model, initial_state=case.initial, data=case.data)
    assert without.verdict == "consistent"
    assert without.unchecked == ("fresh draws: these need a generator",)


def test_examples_of_the_prior_have_to_be_given(case: Case) -> None:
    _, model, initial, data = case
    others = blobs(50, seeded(9))
    c = certify(
        model, initial, data, generator=seeded(), method=quick, slack=0.05, prior_data=others
    )
    assert verdict(c, case) == "consistent"
    assert verdict(c, case, prior_data=others) == "verified"
    assert verdict(c, case, prior_data=(others[0][1:], others[1][1:])) == "refuted"
    assert verdict(c, case, prior_data=data) == "refuted"


def test_the_power_of_fresh_draws_is_what_it_says() -> None:
    """Draws with the error that can be told apart convict in 99 of 100 cases, those below never."""
    import math

    from curvescope.certificates.divergence import kl_lower_inverse

    bound, count = 0.1, 20_000
    far = told_apart(bound, count)
    convicted = {}
    for error in (bound, far):
        total = torch.distributions.Binomial(count, torch.tensor(error)).sample((2000,))
        convicted[error] = sum(
            kl_lower_inverse(float(k) / count, math.log(1e6) / count) > bound for k in total
        )
    assert convicted[bound] == 0
    assert convicted[far] >= 0.99 * 2000


# The file ------------------------------------------------------------------------------


@pytest.fixture
def saved(case: Case, tmp_path: Path) -> Path:
    place = tmp_path / "certificate.json"
    case.certificate.save(place)
    return place


def reseal(stored: dict[str, Any]) -> dict[str, Any]:
    """With the checksum that the content has now."""
    derived = ("statement", "kl", "empirical_error", "complexity", "confidence_level", "checksum")
    content = {name: value for name, value in stored.items() if name not in derived}
    return {**stored, "checksum": checksum({}, {**content, "posterior": None})}


def rewrite(place: Path, stored: Any) -> None:
    place.write_text(json.dumps(stored, ensure_ascii=False), encoding="utf-8")


def set_at(stored: Any, path: tuple[Any, ...], value: Any) -> Any:
    new = copy.deepcopy(stored)
    inner = new
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return new


EDITS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "the sentence": lambda j: {**j, "statement": "It never errs."},
    "the level": lambda j: {**j, "confidence_level": 0.999},
    "a smaller bound": lambda j: {**j, "bound": 0.9 * j["bound"]},
    "no bound": lambda j: {name: value for name, value in j.items() if name != "bound"},
    "an infinite bound": lambda j: {**j, "bound": float("inf")},
    "a bound that is no number": lambda j: {**j, "bound": float("nan")},
    "a true bound": lambda j: {**j, "bound": True},
    "a bound in words": lambda j: {**j, "bound": "0.1"},
    "a bound above one": lambda j: {**j, "bound": 1.5},
    "a negative bound": lambda j: {**j, "bound": -0.1},
    "an unknown field": lambda j: {**j, "note": "trust me"},
    "no layers": lambda j: {**j, "layout": []},
    "no prior": lambda j: {**j, "prior": []},
    "no examples": lambda j: set_at(j, ("source", "samples"), 0),
    "no draws": lambda j: set_at(j, ("draws", "count"), 0),
    "more errors than draws": lambda j: set_at(j, ("draws", "errors"), 10**9),
    "negative errors": lambda j: set_at(j, ("draws", "errors"), -1),
    "true errors": lambda j: set_at(j, ("draws", "errors"), True),
    "half an error": lambda j: set_at(j, ("draws", "errors"), 0.5),
    "a layer without outputs": lambda j: set_at(j, ("layout", 0, "shape"), [0, 5]),
    "a risk of 0.98": lambda j: set_at(j, ("request", "confidence", "sample"), 0.98),
    "a place of zero": lambda j: set_at(j, ("prior", 0, "j"), 0),
    "another format": lambda j: {**j, "format": 99},
    "another type": lambda j: {**j, "type": "Recipe"},
    "a posterior inside": lambda j: {**j, "posterior": None},
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("sealed", [False, True])
def test_an_edited_file_is_refused_or_refuted(case: Case, saved, name: str, sealed: bool) -> None:
    stored = EDITS[name](io.read_json(saved))
    rewrite(saved, reseal(stored) if sealed else stored)
    try:
        loaded = Certificate.load(saved)
        outcome = verdict(loaded, case)
    except CurvescopeError as error:
        assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
    else:
        assert outcome == "refuted"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"bound": 0.01, ', "'bound' stands there twice"),
        ('{"deep": ' + "[" * 5000 + "]" * 5000 + ", ", "nested more than 64 levels"),
        ('{"long": ' + "9" * 400 + ", ", "a number has 400 digits"),
        ('{"large": 1e400, ', "no float is 1e400"),
    ],
)
def test_json_that_is_not_plain_is_refused(saved: Path, text: str, match: str) -> None:
    saved.write_text(saved.read_text().replace("{", text, 1))
    with pytest.raises(CurvescopeError, match=match):
        Certificate.load(saved)


@pytest.mark.parametrize("text", ["", "[]", "null", "3", "{}"])
def test_what_is_no_certificate_is_refused(saved: Path, text: str) -> None:
    saved.write_text(text)
    with pytest.raises(CurvescopeError, match=r"holds no Certificate, but something|is not JSON"):
        Certificate.load(saved)


def leaves(stored: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = stored.items() if isinstance(stored, dict) else enumerate(stored) if isinstance(
        stored, list) and len(stored) < 10 else ()  # fmt: skip
    for name, value in inside:
        yield from leaves(value, (*path, name))


_SILENT = ("history", "orientation", "request", "source.data", "draws.device", "source.seed")
"""What neither the statement nor its proof depends on, or what leaves the word "consistent"."""


@pytest.mark.parametrize("value", [None, True, -1, 0, 1e308, 10**39, "x", [], {}, [[]]])
def test_every_single_field_edited(case: Case, saved: Path, value: Any) -> None:
    """No raw error, and nothing that the statement says is verified with another value."""
    stored = io.read_json(saved)
    for path in leaves(stored):
        if not path or path[0] == "checksum":
            continue
        place = ".".join(map(str, path))
        rewrite(saved, reseal(set_at(stored, path, value)))
        try:
            loaded = Certificate.load(saved)
            outcome = loaded.verify().verdict
            if outcome == "consistent":
                outcome = verdict(loaded, case)
        except CurvescopeError:
            continue
        if dataclasses.replace(loaded, posterior=None) != dataclasses.replace(
            case.certificate, posterior_sha256=loaded.posterior_sha256
        ):
            assert outcome == "refuted" or place.startswith(_SILENT), (place, value, outcome)


# The posterior -------------------------------------------------------------------------


def replace_posterior(place: Path, tensors: dict[str, Tensor]) -> None:
    """Other tensors, with every checksum right."""
    file = posterior_file(place)
    _, metadata = io.read_tensors(file)
    io.write_tensors(file, tensors, metadata)
    stored = io.read_json(place)
    rewrite(place, reseal({**stored, "posterior_sha256": file_digest(file)}))


POSTERIORS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "half precision": lambda t: {k: v.half() for k, v in t.items()},
    "bfloat16": lambda t: {k: v.bfloat16() for k, v in t.items()},
    "booleans": lambda t: {k: v != 0 for k, v in t.items()},
    "integers": lambda t: {k: v.long() for k, v in t.items()},
    "mixed": lambda t: {**t, "mean": t["mean"].float()},
    "single precision": lambda t: {k: v.float() for k, v in t.items()},
    "swapped": lambda t: {**t, "mean": t["prior_mean"], "prior_mean": t["mean"]},
    "another mean": lambda t: {**t, "mean": 0 * t["mean"]},
    "a mean off by little": lambda t: {**t, "mean": t["mean"] * (1 + 1e-6)},
    "NaN": lambda t: {**t, "mean": t["mean"] * torch.nan},
    "no variance": lambda t: {**t, "variance": 0 * t["variance"]},
    "negative variances": lambda t: {**t, "variance": -t["variance"]},
    "variances of the prior": lambda t: {**t, "variance": 0 * t["variance"] + 3.7},
    "no basis": lambda t: {k: v for k, v in t.items() if k not in ("0.U", "0.V")},
    "half a basis": lambda t: {k: v for k, v in t.items() if k != "0.U"},
    "a basis that shrinks": lambda t: {**t, "0.U": 0.1 * t["0.U"]},
    "another basis": lambda t: {**t, "0.U": torch.linalg.qr(t["0.U"] + 1.0)[0]},
    "one more": lambda t: {**t, "more": t["mean"]},
    "none": lambda t: {"mean": t["mean"]},
    "another shape": lambda t: {**t, "mean": t["mean"][:-1]},
}


@pytest.mark.parametrize("name", POSTERIORS)
def test_another_posterior_is_refused_or_refuted(case: Case, saved: Path, name: str) -> None:
    replace_posterior(saved, POSTERIORS[name](case.certificate.posterior.tensors()))
    try:
        outcome = verdict(Certificate.load(saved), case)
    except CurvescopeError as error:
        assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
    else:
        assert outcome == "refuted"


def test_complex_numbers_are_refused(case: Case, saved: Path) -> None:
    """They are as long as double precision, so that the rest of the file fits."""
    file = posterior_file(saved)
    file.write_bytes(file.read_bytes().replace(b"F64", b"C64"))
    stored = io.read_json(saved)
    rewrite(saved, reseal({**stored, "posterior_sha256": file_digest(file)}))
    with pytest.raises(CurvescopeError, match=r"checksum is wrong|not a complete safetensors file"):
        Certificate.load(saved)


def test_a_posterior_that_was_changed_alone_is_refused(case: Case, saved: Path) -> None:
    file = posterior_file(saved)
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 1
    file.write_bytes(bytes(raw))
    with pytest.raises(CurvescopeError, match="is not the posterior that the certificate names"):
        Certificate.load(saved)


def test_a_posterior_of_other_layers_is_refused(case: Case) -> None:
    from curvescope.certificates.blocks import Layout

    with pytest.raises(CurvescopeError, match="belongs to another network, or is damaged"):
        Posterior.from_tensors(Layout.of(mlp(5, 7, 1)), case.certificate.posterior.tensors())


def test_draws_that_cannot_be_are_refused() -> None:
    with pytest.raises(CurvescopeError, match="there cannot be 11 errors in 10 answers"):
        Draws(10, 1, 11)
