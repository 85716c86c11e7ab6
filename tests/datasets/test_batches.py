"""Minibatches are a function of seed, epoch and number; C draws pixels with the right mean."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from dagfisher import datasets
from dagfisher.datasets import Binarisation, Dataset, Split, images


def make(binarisation: Binarisation, n: int = 50, dtype: type = np.uint8) -> Dataset:
    """Images that are all different, and stay so when binarised."""
    grey = np.random.default_rng(0).integers(0, 256, (n + 20, 4, 5), dtype=np.uint8)
    array = grey if dtype is np.uint8 else (grey / np.float32(255)).astype(np.float32)
    return images.assemble("made", binarisation, array[:n], array[n : n + 10], array[n + 10 :])


ALL = pytest.mark.parametrize("binarisation", list(datasets.BINARISATIONS))
BINARY = pytest.mark.parametrize("binarisation", ["B", "C", "F"])


@ALL
@given(
    n=st.integers(1, 40),
    batch_size=st.integers(1, 45),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 1000),
    data=st.data(),
)
@settings(max_examples=40)
def test_an_epoch_resumes_at_any_batch_bit_for_bit(
    binarisation: Binarisation, n: int, batch_size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    dataset = make(binarisation, n)
    whole = list(dataset.batches(batch_size, seed=seed, epoch=epoch))
    assert len(whole) == dataset.batch_count(batch_size)
    start = data.draw(st.integers(0, len(whole)))
    rest = list(dataset.batches(batch_size, seed=seed, epoch=epoch, start=start))
    assert len(rest) == len(whole) - start
    assert all(torch.equal(a, b) for a, b in zip(whole[start:], rest, strict=True))


@ALL
def test_batches_do_not_touch_or_follow_the_global_random_state(binarisation: Binarisation) -> None:
    dataset = make(binarisation)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = torch.cat(list(dataset.batches(8, seed=0, epoch=0)))
    dataset.evaluation("test")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(torch.cat(list(dataset.batches(8, seed=0, epoch=0))), first)


def test_neither_the_default_type_nor_the_default_device_matters() -> None:
    def seen() -> list[torch.Tensor]:
        bars, grey = datasets.load("three-by-three"), make("C")
        assert bars.distribution is not None
        batches = [torch.cat(list(data.batches(8, seed=0, epoch=0))) for data in (bars, grey)]
        return [*batches, grey.evaluation("test"), bars.distribution.support, bars.distribution.probabilities]

    before = seen()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            after = seen()
    finally:
        torch.set_default_dtype(torch.float32)
    assert [x.dtype for x in before] == [x.dtype for x in after]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_every_image_comes_once_in_every_epoch() -> None:
    dataset = make("B")
    expected = sorted(map(tuple, dataset.means("train").tolist()))
    for epoch in range(3):
        rows = torch.cat(list(dataset.batches(8, seed=5, epoch=epoch)))
        assert sorted(map(tuple, rows.tolist())) == expected


@BINARY
@pytest.mark.parametrize(("seed", "epoch"), [(0, 1), (1, 0)])
def test_other_seeds_and_epochs_give_other_batches(binarisation: Binarisation, seed: int, epoch: int) -> None:
    dataset = make(binarisation)
    first = torch.cat(list(dataset.batches(8, seed=0, epoch=0)))
    assert not torch.equal(torch.cat(list(dataset.batches(8, seed=seed, epoch=epoch))), first)


def test_seeds_may_be_integers_of_any_kind() -> None:
    dataset = make("C")
    plain = torch.cat(list(dataset.batches(8, seed=3, epoch=2)))
    assert torch.equal(torch.cat(list(dataset.batches(8, seed=np.int64(3), epoch=np.uint8(2)))), plain)  # type: ignore[arg-type]


def test_batches_can_be_of_any_split() -> None:
    dataset = make("B")
    rows = torch.cat(list(dataset.batches(3, seed=0, epoch=0, split="valid")))
    assert sorted(rows.tolist()) == sorted(dataset.means("valid").tolist())
    assert dataset.batch_count(3, "valid") == 4


@BINARY
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_what_a_learner_sees_is_float32_zeros_and_ones(binarisation: Binarisation, dtype: type) -> None:
    dataset = make(binarisation, dtype=dtype)
    batches = list(dataset.batches(16, seed=0, epoch=0))
    for x in [*batches, dataset.evaluation("test")]:
        assert x.dtype == torch.float32
        assert x.shape[1:] == (dataset.pixels,)
        assert ((x == 0) | (x == 1)).all()


def test_both_ways_to_store_grey_values_draw_the_same_pixels() -> None:
    a, b = (make("C", dtype=dtype) for dtype in (np.uint8, np.float32))
    assert a.train.dtype == torch.uint8 and b.train.dtype == torch.float32
    for x, y in zip(a.batches(8, seed=0, epoch=0), b.batches(8, seed=0, epoch=0), strict=True):
        assert torch.equal(x, y)
    assert torch.equal(a.evaluation("valid"), b.evaluation("valid"))


def test_c_draws_pixels_whose_mean_is_the_grey_value() -> None:
    grey = np.tile(np.array([0, 1, 51, 128, 204, 254, 255], dtype=np.uint8), (2000, 1)).reshape(2000, 1, 7)
    dataset = images.assemble("made", "C", grey, grey[:1], grey)
    expected = torch.tensor([0, 1, 51, 128, 204, 254, 255]) / 255
    epochs = 20
    drawn = torch.cat([torch.cat(list(dataset.batches(100, seed=0, epoch=e))) for e in range(epochs)])
    error = (expected * (1 - expected) / len(drawn)).sqrt()
    assert ((drawn.mean(0) - expected).abs() <= 5 * error).all()
    assert (drawn[:, 0] == 0).all() and (drawn[:, -1] == 1).all()
    evaluated = dataset.evaluation("test")
    assert ((evaluated.mean(0) - expected).abs() <= 5 * error * epochs**0.5).all()


def test_c_draws_anew_at_each_step_but_evaluates_on_the_same_pixels() -> None:
    grey = np.full((64, 5, 5), 127, dtype=np.uint8)
    dataset = images.assemble("made", "C", grey, grey, grey)
    first, second = dataset.batches(32, seed=0, epoch=0)
    assert not torch.equal(first, second)
    assert torch.equal(dataset.evaluation("test"), dataset.evaluation("test"))
    assert not torch.equal(dataset.evaluation("test"), dataset.evaluation("valid"))


def test_b_rounds_at_one_half() -> None:
    levels = np.array([[[0, 127, 128, 255]]], dtype=np.uint8)
    assert images.assemble("made", "B", levels, levels, levels).train.tolist() == [[False, False, True, True]]
    shares = np.array([[[0, 0.4999, 0.5, 1]]], dtype=np.float32)
    assert images.assemble("made", "B", shares, shares, shares).train.tolist() == [[False, False, True, True]]


@BINARY
def test_a_dataset_says_what_it_is(binarisation: Binarisation) -> None:
    dataset = make(binarisation)
    assert dataset.label == f"made {binarisation}"
    assert (dataset.shape, dataset.pixels, dataset.sizes) == ((4, 5), 20, (50, 10, 10))
    assert repr(dataset) == f"Dataset(name='made', binarisation='{binarisation}', shape=(4, 5))"


@BINARY
def test_moving_moves_every_split(binarisation: Binarisation) -> None:
    moved = make(binarisation).to("meta")
    splits: tuple[Split, ...] = ("train", "valid", "test")
    assert {moved.stored(split).device.type for split in splits} == {"meta"}
    assert moved.device.type == "meta"


def test_wrong_arguments_are_refused_at_once() -> None:
    dataset = make("B")
    with pytest.raises(ValueError, match="batch_size is 0"):
        dataset.batches(0, seed=0, epoch=0)
    with pytest.raises(ValueError, match="start is 8; an epoch of made B has 7 batches of 8"):
        dataset.batches(8, seed=0, epoch=0, start=8)
    with pytest.raises(ValueError, match="'all' is not a split"):
        dataset.batches(8, seed=0, epoch=0, split="all")  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@BINARY
def test_a_device_has_the_same_order_and_evaluation(binarisation: Binarisation) -> None:
    here = make(binarisation)
    there = here.to("cuda")
    assert torch.equal(there.evaluation("test").cpu(), here.evaluation("test"))
    batches = list(there.batches(8, seed=0, epoch=0))
    assert {x.device.type for x in batches} == {"cuda"}
    if binarisation != "C":
        assert torch.equal(torch.cat(batches).cpu(), torch.cat(list(here.batches(8, seed=0, epoch=0))))
    assert torch.equal(torch.cat(batches[3:]), torch.cat(list(there.batches(8, seed=0, epoch=0, start=3))))


def test_g_spreads_each_level_evenly_over_its_share_of_the_unit_interval() -> None:
    """x = (level + u)/256: back to its level by rounding down, with mean and variance of a uniform number."""
    dataset = make("G", n=50)
    (x,) = dataset.batches(50, seed=3, epoch=0)
    again = torch.cat(list(dataset.batches(50, seed=3, epoch=1)))
    levels = (x * 256).floor()
    assert sorted(levels.tolist()) == sorted(dataset.train.float().tolist())
    assert not torch.equal(x.sort(0).values, again.sort(0).values)
    u = (x * 256 - levels).double().flatten()
    assert abs(float(u.mean()) - 0.5) < 5 * (1 / 12 / len(u)) ** 0.5
    assert abs(float(u.var()) - 1 / 12) < 0.02
    assert torch.equal(dataset.evaluation("test"), dataset.evaluation("test"))
    assert torch.equal((dataset.evaluation("test") * 256).floor(), dataset.test.float())


def test_g_takes_fractions_as_they_are() -> None:
    dataset = make("G", dtype=np.float32)
    assert torch.equal(dataset.evaluation("test"), dataset.test)
    assert dataset.bits_per_dimension(-3.0) is None


def test_bits_per_dimension_are_those_of_a_code_for_the_levels() -> None:
    """The uniform density on [0, 1) has log-likelihood 0 and takes 8 bits per level; a fair coin takes 1 per pixel."""
    assert make("G").bits_per_dimension(0.0) == 8
    assert make("B").bits_per_dimension(-20 * float(np.log(2))) == pytest.approx(1)


def test_labels_go_where_the_images_go_and_must_be_as_many() -> None:
    dataset = make("B")
    assert dataset.labels("train") is None and dataset.to("meta").train_labels is None
    labelled = replace(dataset, train_labels=torch.arange(50), test_labels=torch.arange(10))
    assert torch.equal(labelled.labels("train"), torch.arange(50))  # type: ignore[arg-type]
    moved = labelled.to("meta")
    assert moved.train_labels is not None and moved.train_labels.device.type == "meta"
    assert moved.test_labels is not None and moved.test_labels.device.type == "meta"
    assert moved.valid_labels is None
    with pytest.raises(ValueError, match=r"the labels of valid have shape \(11,\), for 10 images"):
        replace(dataset, valid_labels=torch.arange(11))
    with pytest.raises(ValueError, match="'all' is not a split"):
        dataset.labels("all")  # type: ignore[arg-type]
