"""Changed images against the same changes written out image by image."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgraph.data.images.augmentation import ImageAugmentation, reflected

HEIGHT, WIDTH = 6, 9


def images(clients=2, batch=50):
    return 1 + torch.rand(clients, batch, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))


def numbers(clients=2, batch=50, seed=1):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**62), 2**62, (clients, batch), generator=random)


def crops(image, padding):
    """Every crop of a padded image, ``{(row, column): image}``."""
    padded = np.pad(image, [(0, 0), (padding, padding), (padding, padding)], mode="reflect")
    shifts = range(2 * padding + 1)
    return {
        (row, column): padded[:, row : row + HEIGHT, column : column + WIDTH] for row in shifts for column in shifts
    }


@pytest.mark.parametrize("padding", [1, 2, 4])
def test_crop_is_a_part_of_the_padded_image_and_every_part_comes_up(padding):
    inputs = images(batch=200)
    changed = ImageAugmentation(frozenset({"crop"}), crop_padding=padding)(inputs, numbers(batch=200))
    seen = set()
    for image, result in zip(inputs.flatten(0, 1).numpy(), changed.flatten(0, 1).numpy(), strict=True):
        matches = [shift for shift, crop in crops(image, padding).items() if np.array_equal(crop, result)]
        assert len(matches) == 1
        seen.add(matches[0])
    assert {row for row, _ in seen} == {column for _, column in seen} == set(range(2 * padding + 1))
    assert len(seen) > 0.9 * min((2 * padding + 1) ** 2, 300)


def test_flip_mirrors_about_half_of_the_images():
    inputs = images(batch=200)
    changed = ImageAugmentation(frozenset({"flip"}))(inputs, numbers(batch=200))
    mirrored = (changed == inputs.flip(-1)).flatten(2).all(2)
    same = (changed == inputs).flatten(2).all(2)
    assert (mirrored ^ same).all()
    assert 0.4 < mirrored.float().mean() < 0.6


@pytest.mark.parametrize("size", [1, 4, 5])
def test_cutout_zeroes_one_square_inside_the_image(size):
    inputs = images(batch=300)
    changed = ImageAugmentation(frozenset({"cutout"}), cutout_size=size)(inputs, numbers(batch=300))
    empty = (changed == 0).all(2)
    assert torch.equal(changed[~empty.unsqueeze(2).expand_as(changed)], inputs[~empty.unsqueeze(2).expand_as(changed)])
    rows, columns = empty.any(3), empty.any(2)
    assert (rows.sum(2) == size).all()
    assert (columns.sum(2) == size).all()
    assert (empty.sum((2, 3)) == size**2).all()
    assert rows.float().argmax(2).unique().tolist() == list(range(HEIGHT - size + 1))
    assert columns.float().argmax(2).unique().tolist() == list(range(WIDTH - size + 1))


def test_all_changes_together_are_each_of_them():
    inputs, drawn = images(), numbers()
    changed = ImageAugmentation(frozenset({"crop", "flip", "cutout"}), 2, 3)(inputs, drawn)
    for image, result in zip(inputs.flatten(0, 1).numpy(), changed.flatten(0, 1).numpy(), strict=True):
        kept = (result != 0).all(0)
        assert kept.sum() == HEIGHT * WIDTH - 9
        candidates = [crop for each in (image, image[:, :, ::-1]) for crop in crops(each, 2).values()]
        assert any(np.array_equal(crop[:, kept], result[:, kept]) for crop in candidates)


def test_an_images_change_depends_on_its_number_alone():
    augment = ImageAugmentation(frozenset({"crop", "flip", "cutout"}), 2, 3)
    inputs, drawn = images(), numbers()
    changed = augment(inputs, drawn)
    assert torch.equal(augment(inputs[1:, 7:9], drawn[1:, 7:9]), changed[1:, 7:9])
    assert not torch.equal(augment(inputs, numbers(seed=2)), changed)
    kinds = [augment(inputs[:1, :1], number.view(1, 1)) for number in drawn.flatten()]
    assert len({tuple(kind.flatten().tolist()) for kind in kinds}) > 80


def test_padding_stays_zero_and_the_images_given_stay_as_they_are():
    inputs = images()
    inputs[:, -1] = 0
    before = inputs.clone()
    changed = ImageAugmentation(frozenset({"crop", "flip", "cutout"}), 2, 3)(inputs, numbers())
    assert (changed[:, -1] == 0).all()
    assert torch.equal(inputs, before)


def test_reflection_does_not_repeat_the_border():
    assert reflected(torch.arange(-3, 8), 5).tolist() == [3, 2, 1, 0, 1, 2, 3, 4, 3, 2, 1]
