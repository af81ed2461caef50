"""The plan of a chaos run follows from its seed, and leaves nothing out."""

from itertools import islice

from tests.chaos.plan import Attack, Trouble, draw


def test_a_seed_brings_the_same_plan_back() -> None:
    assert list(islice(draw(7), 50)) == list(islice(draw(7), 50))
    assert list(islice(draw(7), 50)) != list(islice(draw(8), 50))


def test_every_trouble_and_every_attack_comes() -> None:
    for seed in range(20):
        episodes = list(islice(draw(seed), 40))
        assert {trouble for episode in episodes for trouble in episode.troubles} == set(Trouble)
        assert {episode.attack for episode in episodes} - {None} == set(Attack)


def test_what_is_left_out_does_not_come() -> None:
    for episode in islice(draw(1, troubles=(), attacks=()), 20):
        assert not episode.troubles
        assert episode.attack is None
        assert not episode.is_measured
    assert not any(episode.is_measured for episode in islice(draw(1, measured_share=0.0), 20))
