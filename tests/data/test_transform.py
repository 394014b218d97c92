from typing import Any

import numpy as np
import pytest

from treadle.data.transform import Compose, PseudoTransform, Transform, VisionTransform


class Append(Transform):
    """Adds its letter to a text; notes the order of calls."""

    def __init__(self, letter: str, calls: list[str] | None = None) -> None:
        self.letter = letter
        self.calls = [] if calls is None else calls

    def apply(self, input: Any) -> Any:
        self.calls.append(input + self.letter)
        return input + self.letter


def test_pseudo_transform_changes_nothing() -> None:
    samples = [1, 2]
    assert PseudoTransform().apply_batch(samples) is samples
    assert PseudoTransform().apply(3) == 3
    assert repr(PseudoTransform()) == "PseudoTransform"


def test_apply_batch_names_the_sample_that_failed() -> None:
    with pytest.raises(TypeError) as caught:
        Append("x").apply_batch(["a", 1])
    assert caught.value.__notes__ == ["in transform Append, sample 1 of the batch"]


@pytest.mark.parametrize(
    ("batch_compose", "calls"),
    [(False, ["1a", "1ab", "2a", "2ab"]), (True, ["1a", "2a", "1ab", "2ab"])],
)
def test_compose_chains(batch_compose: bool, calls: list[str]) -> None:
    seen: list[str] = []
    chain = Compose([Append("a", seen), Append("b", seen)], batch_compose)
    assert tuple(chain.apply_batch(["1", "2"])) == ("1ab", "2ab")
    assert seen == calls


def test_compose_shuffles_only_within_groups() -> None:
    chain = Compose([Append(letter) for letter in "abcd"], shuffle_indices=[(1, 3), (2, 4)])
    np.random.seed(0)
    seen = {chain.apply("") for _ in range(100)}
    assert seen == {"abcd", "cbad", "adcb", "cdab"}


def test_compose_refuses_what_it_cannot_shuffle() -> None:
    with pytest.raises(ValueError, match="whole batch"):
        Compose([Append("a")], batch_compose=True, shuffle_indices=[(1,)])
    with pytest.raises(ValueError, match="from 1 to 1, got 0"):
        Compose([Append("a")], shuffle_indices=[(0, 1)])


def test_compose_hands_its_order_down() -> None:
    inner = Compose([Append("a")])
    Compose([inner, Append("b")], order=["image", "mask"])
    assert inner.order == inner.transforms[0].order == ("image", "mask")


def test_compose_is_a_vision_transform() -> None:
    chain = Compose([Append("a")])
    assert isinstance(chain, VisionTransform) and chain.order == ("image",)
    with pytest.raises(ValueError, match="sequence"):
        Compose(order="image")
    with pytest.raises(ValueError, match="batch is invalid"):
        Compose(order=("image", "batch"))


def test_compose_keeps_the_orders_of_its_chain_and_takes_fields_of_their_own() -> None:
    class Louder(VisionTransform):
        def _apply_sound(self, sound: int) -> int:
            return 2 * sound

    assert Compose([Louder(("sound",))]).apply(4) == 8
    assert Compose([Louder(), Louder()], order=("image_info", "sound")).apply((1, 4)) == (1, 16)


def test_compose_prints_its_chain() -> None:
    assert repr(Compose([Append("a"), PseudoTransform()])) == "Compose(Append, PseudoTransform)"
