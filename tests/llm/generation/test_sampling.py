"""Which tokens are chosen."""

import numpy as np
import pytest

from treadle.base.errors import NumericError
from treadle.llm.generation import sampling
from treadle.llm.generation.options import Options, options_of
from treadle.llm.generation.sampling import choose

LOGITS = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], np.float32))


def shares(options, logits=LOGITS, turns=4000):
    """How often each token is chosen, by position."""
    found = [choose(logits, options, [], [0] * i).token for i in range(turns)]
    return np.bincount(found, minlength=len(logits)) / turns


def drawn(**options):
    return Options(temperature=1.0, **options)


def test_greedy_takes_the_first_of_the_likeliest():
    assert choose(np.array([1, 3, 3, 2], np.float32), Options(), [], []).token == 1


@pytest.mark.parametrize(
    ("options", "want"),
    [
        (drawn(), [0.4, 0.3, 0.2, 0.06, 0.04]),
        (drawn(top_k=2), [4 / 7, 3 / 7, 0, 0, 0]),
        (drawn(top_p=0.65), [4 / 7, 3 / 7, 0, 0, 0]),
        (drawn(top_p=0.75), [4 / 9, 3 / 9, 2 / 9, 0, 0]),
        (drawn(top_k=3, top_p=0.5), [4 / 7, 3 / 7, 0, 0, 0]),
        (drawn(min_p=0.45), [4 / 9, 3 / 9, 2 / 9, 0, 0]),
        (drawn(typical_p=0.25), [0, 1, 0, 0, 0]),
        (Options(temperature=0.5), np.array([16, 9, 4, 0.36, 0.16]) / 29.52),
    ],
    ids=str,
)
def test_shares(options, want):
    np.testing.assert_allclose(shares(options), want, atol=0.03)


def test_many_tokens_are_sampled_as_few_are():
    """Beyond the likeliest thousand, too."""
    logits = np.zeros(5000, np.float32)
    found = shares(drawn(), logits, 2000)
    assert (found > 0).sum() > 1500
    assert (shares(drawn(top_k=3), logits, 300) > 0).sum() == 3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_p": 0.95},
        {"min_p": 0.001},
        {"typical_p": 0.9},
        {"top_k": 700, "top_p": 0.97},
        {"top_p": 0.99, "min_p": 0.0005, "typical_p": 0.97},
        {"temperature": 1.9, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_choices_do_not_depend_on_how_many_tokens_are_looked_at_first(options, monkeypatch):
    rng = np.random.default_rng(0)
    logits = rng.gumbel(size=3000).astype(np.float32)

    def run():
        chosen = Options(**{"temperature": 1.0, **options})
        return [choose(logits, chosen, [3], [0] * i).token for i in range(300)]

    found = run()
    assert len(set(found)) > 30
    for few in (2, 37, 5000):
        monkeypatch.setattr(sampling, "_FEW", few)
        assert run() == found


def test_many_likely_tokens_are_drawn_as_their_definition_says():
    """Sorted, summed up in float64, and found."""
    logits = np.random.default_rng(1).standard_normal(20000).astype(np.float32)
    order = np.argsort(-logits, kind="stable")
    sums = np.exp(logits[order].astype(np.float64)).cumsum()
    for i in range(50):
        drawn = sampling._uniform(0, 0, i) * sums[-1]
        want = order[sums.searchsorted(drawn, "right")]
        assert choose(logits, Options(temperature=1.0), [], [0] * i).token == want


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 5e-324])
def test_hardly_any_temperature_is_greedy(temperature):
    logits = np.array([1, 3, 2, -np.inf], np.float32)
    assert shares(Options(temperature=temperature), logits, 20)[1] == 1


def test_seeds_repeat_and_differ():
    def run(**changes):
        return [choose(LOGITS, drawn(**changes), [], [0] * i).token for i in range(50)]

    assert run(seed=5) == run(seed=5)
    assert run(seed=5) != run(seed=6)
    other = [choose(LOGITS, drawn(seed=5), [], [0] * i, sequence=1).token for i in range(50)]
    assert other != run(seed=5)


def test_penalties():
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    assert choose(logits, Options(repetition_penalty=1.2), [0], []).token == 1
    assert choose(logits, Options(presence_penalty=0.2), [0], []).token == 0
    assert choose(logits, Options(presence_penalty=0.2), [], [0]).token == 1
    assert choose(logits, Options(frequency_penalty=0.04), [], [0, 0]).token == 0
    assert choose(logits, Options(frequency_penalty=0.04), [], [0, 0, 0]).token == 1
    assert choose(logits, Options(logit_bias={2: 10.0}), [], []).token == 2
    negative = np.array([-1.0, -1.1], np.float32)
    assert choose(negative, Options(repetition_penalty=1.2), [0], []).token == 1


def test_logprobs_are_those_of_the_model():
    found = choose(LOGITS, drawn(top_k=1, logprobs=2, logit_bias={4: 50.0}), [], [])
    assert found.token == 4
    assert found.logprob == pytest.approx(np.log(0.04), abs=1e-5)
    assert [t for t, _ in found.top] == [0, 1]


def test_logits_of_minus_infinity_are_never_chosen():
    logits = np.array([-np.inf, 0.0, -np.inf], np.float32)
    assert shares(drawn(), logits, 100)[1] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"max_tokens": 0},
        {"seed": -1},
        {"logprobs": 21},
        {"beams": 4},
    ],
    ids=str,
)
def test_wrong_options(wrong):
    with pytest.raises(NumericError):
        Options().changed(**wrong)


def test_options_of_files():
    found = options_of({"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20})
    assert (found.temperature, found.top_p, found.top_k) == (0.7, 0.8, 20)
    assert options_of({"repetition_penalty": 1.1, "temperature": 0.7}).temperature == 0
