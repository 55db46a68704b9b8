import os
import threading
import time
from pathlib import Path

import pytest

from curvescope.sweeps import claims
from curvescope.sweeps.claims import Watch, claimed, running


def foreign(folder: Path, number: int = 1) -> Path:
    """A claim of another machine, which nobody here has locked."""
    file = folder / f"claim-{number:06d}"
    file.write_text("another machine\nhost:1\n")
    return file


def taken(folder: Path, watch: Watch) -> bool:
    with claimed(folder, watch, lambda: None) as mine:
        return mine


def test_one_of_many_threads_gets_it(tmp_path: Path) -> None:
    barrier, got = threading.Barrier(8), []

    def attempt() -> None:
        barrier.wait()
        with claimed(tmp_path, Watch(), lambda: None) as mine:
            got.append(mine)
            barrier.wait()  # nobody gives it back before all have tried

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 7 + [True]
    assert list(tmp_path.iterdir()) == []


def test_the_claim_of_a_dead_process_here_is_free_at_once(tmp_path: Path) -> None:
    file = tmp_path / "claim-000001"
    file.write_text(f"{claims._machine()}\nhost:1\n")  # nobody holds its lock
    assert not running(tmp_path)
    with claimed(tmp_path, Watch(), lambda: None) as mine:
        assert mine
        assert running(tmp_path)
        assert sorted(os.listdir(tmp_path)) == ["claim-000001", "claim-000002"]
    assert list(tmp_path.iterdir()) == []


def test_another_machine_keeps_it_as_long_as_it_touches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, clock, watch = foreign(tmp_path), [1000.0], Watch()
    monkeypatch.setattr(claims.time, "monotonic", lambda: clock[0])
    for beat in range(4):
        os.utime(file, ns=(beat, beat))  # its clock is decades behind ours
        clock[0] += claims.LEASE
        assert not taken(tmp_path, watch)
    clock[0] += claims.LEASE
    assert not taken(tmp_path, watch)  # unchanged for exactly a lease
    clock[0] += 1
    assert taken(tmp_path, watch)


def test_who_has_not_watched_waits_a_whole_lease(tmp_path: Path) -> None:
    os.utime(foreign(tmp_path), (0, 0))
    assert not taken(tmp_path, Watch())
    assert not running(tmp_path)  # for a reader, by both clocks


def test_only_one_takes_over(tmp_path: Path) -> None:
    os.utime(foreign(tmp_path), (0, 0))
    watch = Watch()
    watch._seen[tmp_path / "claim-000001"] = (0, time.monotonic() - 2 * claims.LEASE)
    with (
        claimed(tmp_path, watch, lambda: None) as mine,
        claimed(tmp_path, watch, lambda: None) as other,
    ):
        assert (mine, other) == (True, False)


def test_a_machine_that_wakes_up_is_told_that_it_lost_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.01)
    lost = threading.Event()
    with claimed(tmp_path, Watch(), lost.set) as mine:
        assert mine
        foreign(tmp_path, 2)
        assert lost.wait(5)
    assert [file.name for file in tmp_path.iterdir()] == ["claim-000002"]


def test_a_disk_without_locks_is_watched_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(claims, "take", refuse)
    with claimed(tmp_path, Watch(), lambda: None) as mine:
        assert mine
        monkeypatch.undo()
        assert not taken(tmp_path, Watch())
