"""The table of recovery, a test per letter: what was found, what was done about it, what is served afterwards.

``recovery_cases`` holds the table. Each test is named after its letter, here and in ``test_foreign_files``; one test
sees that none is missing.
"""

import re
import sys

import pytest

from courser.model.durability import Durability
from courser.storage.ledger import OffsetGap
from courser.storage.read_result import SkippedRange, SkipReason
from courser.storage.recovery_cases import CASES, Oddity, StopKind, Tail, case_for
from courser.storage.segment import SegmentState
from courser.storage.settings import LogSettings
from tests.storage import test_foreign_files
from tests.storage.engine import Engine, durability, flipped
from tests.storage.recovered import (
    KEY,
    ONE_SEGMENT,
    assert_stable,
    change,
    data_of,
    every_stop,
    filled,
    offsets,
    skipped,
    the_finding,
    three_segments,
)

# --- what follows the last good batch -------------------------------------------------------------------


@every_stop
def test_case_a_nothing_follows_the_last_batch_and_nothing_is_done(stop: StopKind) -> None:
    engine = filled()
    engine.stop(StopKind.KILLED)
    before = data_of(engine)[: engine.batch_starts()[-1]]
    change(engine, 0, before)
    engine.open(stop)
    assert engine.letters() == []
    assert data_of(engine) == before
    assert offsets(engine) == list(range(15))
    assert engine.log.next_offset == (engine.log.reserved_end if stop is StopKind.CRASHED else 15)
    assert_stable(engine)


@every_stop
def test_case_b_zeros_that_were_allocated_ahead_are_cut(stop: StopKind) -> None:
    engine = filled()
    engine.stop(StopKind.KILLED)
    before = data_of(engine)[: engine.batch_starts()[-1]]
    change(engine, 0, before + bytes(10_000))
    engine.open(stop)
    assert engine.letters() == []
    assert data_of(engine) == before
    assert engine.quarantined() == {}
    assert_stable(engine)


def test_case_c_a_kill_tears_the_last_batch_which_is_copied_aside_and_cut() -> None:
    engine = filled()
    engine.stop(StopKind.KILLED)
    whole = data_of(engine)[: engine.batch_starts()[-1]]
    last = engine.batch_starts()[-2]
    change(engine, 0, whole[: last + 300] + bytes(5000))
    engine.open(StopKind.KILLED)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage, finding.position) == ("C", False, last)
    assert data_of(engine) == whole[:last]
    assert list(engine.quarantined().values()) == [whole[last : last + 300].rstrip(b"\0")]
    assert offsets(engine) == list(range(12))
    assert engine.log.next_offset == engine.log.reserved_end
    assert finding.is_warning
    assert f"offsets 12 to {engine.log.next_offset - 1} may have been confirmed" in finding.text
    assert_stable(engine)


def test_case_d_after_a_kill_damage_with_good_batches_behind_it_is_kept_and_marked() -> None:
    engine = filled()
    engine.stop(StopKind.KILLED)
    start, end = engine.batch_starts()[1:3]
    damaged = flipped(data_of(engine), start + 300)
    change(engine, 0, damaged)
    engine.open(StopKind.KILLED)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage) == ("D", True)
    assert (finding.position, finding.size, finding.first_offset, finding.end_offset) == (start, end - start, 3, 6)
    assert data_of(engine)[start:end] == damaged[start:end]
    assert engine.quarantined() == {}
    assert offsets(engine) == [0, 1, 2, *range(6, 15)]
    assert skipped(engine) == [SkippedRange(3, 6, SkipReason.DAMAGED)]
    assert_stable(engine)


def test_case_e_after_a_power_cut_a_bad_end_is_cut_and_later_segments_go_with_it() -> None:
    engine = filled()
    engine.log.roll()
    engine.fill(2)
    engine.sync()
    engine.stop(StopKind.KILLED)
    whole = data_of(engine)[: engine.batch_starts()[-1]]
    last, later = engine.batch_starts()[-2], data_of(engine, 15)
    change(engine, 0, whole[:-1])
    engine.open(StopKind.CRASHED)
    assert engine.letters() == ["E", "F"]
    assert not any(finding.is_damage for finding in engine.log.findings)
    assert data_of(engine) == whole[:last]
    assert sorted(engine.quarantined().values(), key=len) == sorted([whole[last:-1], later], key=len)
    assert engine.log_path(15) not in engine.disk.files()
    assert offsets(engine) == list(range(12))
    assert engine.log.next_offset == engine.log.reserved_end >= 21
    assert_stable(engine)


def test_case_f_after_a_power_cut_nothing_behind_a_hole_is_trusted() -> None:
    engine = filled()
    engine.stop(StopKind.KILLED)
    whole = data_of(engine)[: engine.batch_starts()[-1]]
    start, end = engine.batch_starts()[1:3]
    change(engine, 0, whole[:start] + bytes(end - start) + whole[end:])
    engine.open(StopKind.CRASHED)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage, finding.position) == ("F", False, start)
    assert data_of(engine) == whole[:start]
    assert list(engine.quarantined().values()) == [bytes(end - start) + whole[end:]]
    assert offsets(engine) == [0, 1, 2]
    assert engine.log.next_offset >= engine.log.reserved_end >= 15
    assert_stable(engine)


def test_case_g_after_a_clean_stop_bad_bytes_at_the_end_are_damage_copied_aside_and_cut() -> None:
    engine = filled()
    engine.stop()
    before = data_of(engine)
    change(engine, 0, before + b"somebody wrote here")
    engine.open(StopKind.CLEAN)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage, finding.position) == ("G", True, len(before))
    assert data_of(engine) == before
    assert list(engine.quarantined().values()) == [b"somebody wrote here"]
    assert offsets(engine) == list(range(15))
    assert_stable(engine)


def test_case_h_after_a_clean_stop_damage_in_between_is_kept_and_marked() -> None:
    """Only without a recovery point at the end: here somebody brought back an older ledger."""
    engine = Engine(ONE_SEGMENT)
    old_ledger = engine.disk.contents(engine.ledger_path)
    engine.fill(5)
    engine.stop()
    start, end = engine.batch_starts()[1:3]
    engine.disk.plant(engine.ledger_path, old_ledger)
    change(engine, 0, flipped(data_of(engine), start))
    engine.open(StopKind.CLEAN)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage) == ("H", True)
    assert (finding.position, finding.size, finding.first_offset, finding.end_offset) == (start, end - start, 3, 6)
    assert offsets(engine) == [0, 1, 2, *range(6, 15)]
    assert_stable(engine)


@pytest.mark.parametrize("level", list(Durability), ids=lambda level: level.value)
def test_case_w_after_a_kill_a_whole_batch_at_the_end_that_rotted_is_damage_and_keeps_its_offsets(
    level: Durability,
) -> None:
    engine = filled(settings=LogSettings(segment_size=1024 * 1024, reservation_min=100, durability=durability(level)))
    engine.stop(StopKind.KILLED)
    whole = data_of(engine)[: engine.batch_starts()[-1]]
    last = engine.batch_starts()[-2]
    damaged = flipped(whole, last + 300)
    change(engine, 0, damaged + bytes(5000))
    engine.open(StopKind.KILLED)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage, finding.position) == ("W", True, last)
    assert data_of(engine) == whole[:last]
    assert list(engine.quarantined().values()) == [damaged[last:].rstrip(b"\0")]
    assert offsets(engine) == list(range(12))
    # At `synced` nothing is reserved ahead: the header and the size of the batch tell what it held at most.
    assert engine.log.next_offset == max(engine.log.reserved_end, 15)
    first = engine.append_numbered(2).base_offset
    engine.sync()
    assert skipped(engine) == [SkippedRange(12, first, SkipReason.LOST)]
    assert_stable(engine)


@pytest.mark.parametrize("stop", [StopKind.KILLED, StopKind.CRASHED], ids=lambda stop: stop.value)
@pytest.mark.parametrize("rotten", [8, 60, 250, 256, 300, -1], ids=lambda position: f"byte {position}")
def test_rot_in_the_last_batch_never_frees_its_offsets_though_nothing_was_reserved(stop: StopKind, rotten: int) -> None:
    """Header or body, kill or power cut: at `synced` the sizes of the bytes are all that bounds the numbers."""
    settings = LogSettings(segment_size=1024 * 1024, durability=durability(Durability.SYNCED))
    engine = filled(settings=settings)
    engine.stop(StopKind.KILLED)
    whole = data_of(engine)[: engine.batch_starts()[-1]]
    last = engine.batch_starts()[-2]
    change(engine, 0, flipped(whole, len(whole) - 1 if rotten < 0 else last + rotten))
    engine.open(stop)
    assert offsets(engine) == list(range(12))
    assert engine.log.next_offset >= 15
    assert_stable(engine)


def test_after_a_power_cut_a_segment_that_is_set_aside_keeps_its_offsets_though_nothing_was_reserved() -> None:
    """Rot in front of it looks like a hole. Its messages were synced and confirmed all the same."""
    engine = filled(settings=LogSettings(segment_size=1024 * 1024, durability=durability(Durability.SYNCED)))
    engine.log.roll()
    engine.fill(2)
    engine.sync()
    engine.stop(StopKind.KILLED)
    change(engine, 0, flipped(data_of(engine)[: engine.batch_starts()[-1]], engine.batch_starts()[-2] + 300))
    engine.open(StopKind.CRASHED)
    assert engine.letters() == ["E", "F"]
    assert engine.log.next_offset >= 21
    assert_stable(engine)


# --- whole files ----------------------------------------------------------------------------------------


@every_stop
def test_case_j_a_deleted_segment_that_came_back_is_deleted_again(stop: StopKind) -> None:
    engine = three_segments()
    engine.open(StopKind.CLEAN)
    old_log, old_index = data_of(engine), engine.disk.contents(engine.index_path())
    engine.trim(6)
    engine.stop()
    change(engine, 0, old_log)
    engine.disk.plant(engine.index_path(), old_index)
    engine.open(stop)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage, finding.path) == ("J", False, engine.log_path())
    assert engine.log.start_offset == 6
    assert offsets(engine) == list(range(6, 18))
    assert not {engine.log_path(), engine.index_path()} & set(engine.disk.files())


@every_stop
def test_case_k_a_sealed_segment_that_is_gone_is_a_loss_and_the_rest_is_served(stop: StopKind) -> None:
    engine = three_segments()
    engine.disk.unlink(engine.log_path(6))
    engine.disk.sync_directory(engine.directory)
    engine.open(stop)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage, finding.first_offset, finding.end_offset) == ("K", True, 6, 12)
    assert offsets(engine) == [*range(6), *range(12, 18)]
    assert skipped(engine) == [SkippedRange(6, 12, SkipReason.LOST)]
    assert engine.log.ledger.state.gaps[0] == OffsetGap(6, 12, is_loss=True)


@every_stop
def test_case_l_a_sealed_segment_that_is_too_short_loses_its_end_and_no_more(stop: StopKind) -> None:
    engine = three_segments()
    whole, border = data_of(engine, 6), engine.batch_starts(6)[1]
    for size in (0, 100, border - 1, border, border + 1, border + 256, len(whole) - 1):
        other = Engine(ONE_SEGMENT)
        other.disk = engine.disk.clone(engine.disk.random)
        change(other, 6, whole[:size])
        other.open(stop)
        finding = the_finding(other)
        assert (finding.letter, finding.is_damage, finding.position) == ("L", True, size)
        kept = 9 if size >= border else 6
        assert offsets(other) == [*range(kept), *range(12, 18)], size
        lost = {offset for skip in skipped(other) for offset in range(skip.first_offset, skip.end_offset)}
        assert lost == set(range(kept, 12))


@every_stop
def test_case_m_what_follows_the_seal_of_a_segment_is_ignored(stop: StopKind) -> None:
    engine = three_segments()
    whole = data_of(engine, 6)
    change(engine, 6, whole + whole)
    engine.open(stop)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage) == ("M", True)
    assert (finding.position, finding.size) == (len(whole), len(whole))
    assert offsets(engine) == list(range(18))
    assert data_of(engine, 6) == whole + whole


@every_stop
def test_case_n_an_open_segment_shorter_than_its_recovery_point_lost_synced_messages(stop: StopKind) -> None:
    engine = filled()
    engine.stop()
    whole = data_of(engine)
    change(engine, 0, whole[: engine.batch_starts()[3]])
    engine.open(stop)
    findings = {finding.letter: finding for finding in engine.log.findings}
    assert findings["N"].is_damage
    assert (findings["N"].position, findings["N"].size) == (
        engine.batch_starts()[3],
        len(whole) - engine.batch_starts()[3],
    )
    assert offsets(engine) == list(range(9))
    assert engine.log.next_offset >= 15, "offsets that were confirmed are not given out again"
    first = engine.append_numbered(2).base_offset
    assert skipped(engine) == [SkippedRange(9, first, SkipReason.LOST)]


@every_stop
def test_case_o_an_unsealed_file_that_begins_inside_another_segment_is_set_aside(stop: StopKind) -> None:
    engine = three_segments()
    stranger = data_of(engine, 12)
    change(engine, 8, stranger)
    engine.open(stop)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage, finding.path) == ("O", True, engine.log_path(8))
    assert offsets(engine) == list(range(18))
    assert list(engine.quarantined().values()) == [stranger]
    assert_stable(engine)


@every_stop
def test_case_p_without_a_ledger_everything_is_read_from_the_segments_again(stop: StopKind) -> None:
    engine = three_segments()
    engine.disk.unlink(engine.ledger_path)
    engine.disk.sync_directory(engine.directory)
    engine.open(stop)
    assert "P" in engine.letters()
    assert engine.log.findings[0].is_damage
    assert offsets(engine) == list(range(18))
    assert engine.log.next_offset >= 18 + engine.settings.reservation_max, "nobody knows what was confirmed"
    assert_stable(engine)
    engine.upkeep()
    assert [segment.state for segment in engine.log.segments[:2]] == [SegmentState.SEALED] * 2


@every_stop
def test_case_q_a_segment_without_a_batch_is_removed(stop: StopKind) -> None:
    engine = three_segments()
    for data in (b"", bytes(4096)):
        change(engine, 18, data)
        engine.disk.plant(engine.index_path(18), b"")
        engine.open(stop)
        finding = the_finding(engine)
        assert (finding.letter, finding.is_damage) == ("Q", False)
        assert offsets(engine) == list(range(18))
        assert not {engine.log_path(18), engine.index_path(18)} & set(engine.disk.files())


@every_stop
def test_case_r_names_that_are_none_of_ours_are_left_alone(stop: StopKind) -> None:
    engine = three_segments()
    names = ["notes.txt", "12.log", "0000000000000000000x.log", "000000000000000000000.log", "00000000000000000000.LOG"]
    for name in names:
        engine.disk.plant(engine.directory / name, b"mine")
    engine.disk.plant_directory(engine.directory / "folder")
    engine.open(stop)
    assert engine.letters() == ["R"] * 6
    assert not any(finding.is_damage for finding in engine.log.findings)
    assert all(engine.disk.contents(engine.directory / name) == b"mine" for name in names)
    assert offsets(engine) == list(range(18))


@every_stop
def test_case_s_the_open_segment_that_is_gone_is_a_loss_and_its_offsets_stay_used(stop: StopKind) -> None:
    engine = three_segments()
    engine.disk.unlink(engine.log_path(12))
    engine.disk.sync_directory(engine.directory)
    engine.open(stop)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage, finding.first_offset, finding.end_offset) == ("S", True, 12, 18)
    assert offsets(engine) == list(range(12))
    first = engine.append_numbered(2).base_offset
    assert first >= 18
    assert offsets(engine) == [*range(12), first, first + 1]
    assert SkippedRange(12, first, SkipReason.LOST) in skipped(engine)


@every_stop
def test_case_t_a_damaged_consumer_offset_moves_that_consumer_back(stop: StopKind) -> None:
    engine = filled()
    engine.log.store_offset(KEY, 3)
    engine.log.store_offset(KEY, 7)
    engine.stop()
    engine.disk.plant(engine.offsets_path, flipped(engine.disk.contents(engine.offsets_path), 64 + 32 + 20))
    engine.open(stop)
    finding = the_finding(engine)
    assert (finding.letter, finding.path, finding.position) == ("T", engine.offsets_path, 96)
    assert engine.log.offsets.get(KEY) in (3, None)
    engine.restart(stop)
    assert engine.letters() == []


@every_stop
def test_case_u_what_an_interrupted_step_left_is_removed(stop: StopKind) -> None:
    engine = three_segments()
    for name in ("ledger.tmp", "offsets.tmp"):
        engine.disk.plant(engine.directory / name, b"half")
    engine.open(stop)
    assert engine.letters() == ["U", "U"]
    assert not any(finding.is_damage for finding in engine.log.findings)
    assert not [path for path in engine.disk.files() if path.suffix == ".tmp"]
    assert offsets(engine) == list(range(18))


def test_case_v_a_hole_between_segments_that_nobody_knows_of_is_a_loss() -> None:
    engine = filled(2)
    engine.log.roll()
    engine.fill(2)
    engine.log.roll()
    engine.fill(2)
    engine.stop(StopKind.KILLED)
    engine.disk.unlink(engine.log_path(6))
    engine.disk.sync_directory(engine.directory)
    engine.open(StopKind.KILLED)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage, finding.first_offset, finding.end_offset) == ("V", True, 6, 12)
    assert offsets(engine) == [*range(6), *range(12, 18)]
    assert skipped(engine) == [SkippedRange(6, 12, SkipReason.LOST)]
    assert_stable(engine)


@every_stop
def test_case_z_times_in_the_future_count_as_now(stop: StopKind) -> None:
    engine = Engine()
    engine.clock.jump(10**15)
    engine.append_numbered(6)
    engine.sync()
    engine.stop(stop)
    engine.clock.jump(-(10**15))
    engine.open(stop)
    assert [finding.is_damage for finding in engine.log.findings if finding.letter == "Z"] == [False]
    assert engine.log.segments[0].last_stored_at == engine.clock.now()
    assert offsets(engine) == [*range(6)]


# --- the table itself -----------------------------------------------------------------------------------


def test_every_letter_has_a_test_of_its_name() -> None:
    letters = {case.letter for case in CASES} | {oddity.value for oddity in Oddity}
    names = dir(sys.modules[__name__]) + dir(test_foreign_files)
    named = {match[1].upper() for name in names if (match := re.match(r"test_case_(\w)_", name))}
    assert named == letters


def test_every_letter_is_used_once() -> None:
    letters = [case.letter for case in CASES] + [oddity.value for oddity in Oddity]
    assert sorted(letters) == sorted(set(letters))


@every_stop
@pytest.mark.parametrize("tail", list(Tail))
def test_exactly_one_case_applies_to_every_situation(stop: StopKind, tail: Tail) -> None:
    assert [case for case in CASES if stop in case.stops and tail in case.tails] == [case_for(stop, tail)]
