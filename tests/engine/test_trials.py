"""Grammars of strangers: one that would take minutes or gigabytes is ended, and the others are served meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from engine.worded import TOKENIZER, VOCAB
from outpace import Grammar, RequestError
from outpace.distributed.workers import Worker
from outpace.engine.grammars import trial_process as trial
from outpace.engine.grammars.compiler import MAX_KEPT, Compiler
from outpace.engine.grammars.trial_process import CPU_S
from outpace.engine.grammars.trials import TrialFailed
from server.running import until

HOSTILE = Grammar.json_schema(
    {"type": "string", "allOf": [{"pattern": f"[ab]*a[ab]{{{i}}}$"} for i in range(1, 41)]},
)
"""40 patterns at once: whether any text fits them all takes the library minutes to find out."""
OTHER = Grammar.json_schema({"allOf": [{"type": "integer", "multipleOf": p} for p in (7, 11, 13, 17, 19, 23)]})


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    made = Compiler(TOKENIZER, VOCAB)
    made.guard()
    made.warm().result()
    yield made
    made.close()


def trial_pid(compiler: Compiler) -> int:
    assert compiler._trials is not None and compiler._trials._worker is not None
    return compiler._trials._worker.pid


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def tried(compiler: Compiler) -> list[int]:
    """Each of them is the child of one that watches it."""
    return [pid for watcher in children(trial_pid(compiler)) for pid in children(watcher)]


def test_hostile_grammars_end_and_others_do_not_wait_for_them(compiler: Compiler) -> None:
    """They stand still while ordinary ones are compiled, so that none of them ends of itself meanwhile."""
    hostile = [compiler.begin(grammar) for grammar in (HOSTILE, OTHER)]
    until(lambda: len(tried(compiler)) == 2)
    pids = tried(compiler)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for place in range(5):
        compiler.compile(Grammar.regex(f"a{{{place + 1}}}"))
    assert not any(each.done() for each in hostile)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    limits = rf"more than ({CPU_S:g} s of a core|\d+ MiB); make it simpler|the machine is so busy"
    for each in hostile:
        with pytest.raises((RequestError, TrialFailed), match=limits):
            each.result()
    until(lambda: not children(trial_pid(compiler)))  # an ended process closes its socket a moment before it is gone


def test_what_is_wrong_is_said_as_without_a_trial(compiler: Compiler) -> None:
    plain = Compiler(TOKENIZER, VOCAB)
    wrong = [Grammar.regex("("), Grammar.regex("a{0}"), Grammar.ebnf("root ::= (("), Grammar.ebnf("start: a\nb: <x>")]
    for grammar in [*wrong, Grammar.json_schema({"type": "string", "format": "no"})]:
        with pytest.raises(RequestError) as expected:
            plain.compile(grammar)
        with pytest.raises(RequestError) as caught:
            compiler.compile(grammar)
        assert str(caught.value) == str(expected.value)
    for grammar in (Grammar.choice(["ab", "cab"]), Grammar.ebnf('root ::= "a" root | "b"'), Grammar.json_object()):
        assert compiler.compile(grammar).start.compute_bitmask() == plain.compile(grammar).start.compute_bitmask()


def test_a_trial_process_that_dies_is_started_again(compiler: Compiler) -> None:
    compiler.compile(Grammar.regex("a"))
    before = trial_pid(compiler)
    os.kill(before, signal.SIGKILL)
    compiler.compile(Grammar.regex("b"))
    assert trial_pid(compiler) != before


def test_it_ends_with_its_compiler() -> None:
    made = Compiler(TOKENIZER, VOCAB)
    made.guard()
    made.warm().result()
    pid = trial_pid(made)
    made.close()
    assert not Path(f"/proc/{pid}").exists()


def test_what_could_not_be_tried_is_tried_again(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(grammar: bytes) -> bytes:
        raise OSError("no descriptors are left")

    with monkeypatch.context() as patch:
        patch.setattr(compiler._trials, "_ask", broken)
        with pytest.raises(RequestError, match="no descriptors are left; send the request again"):
            compiler.compile(Grammar.regex("a"))
    compiler.compile(Grammar.regex("a"))


def test_what_is_being_compiled_is_not_begun_again_however_much_else_is() -> None:
    made = Compiler(TOKENIZER, VOCAB)
    made._threads, goes_on = ThreadPoolExecutor(1), Event()
    made._threads.submit(goes_on.wait)
    grammars = [Grammar.regex(f"a{{{place + 1}}}") for place in range(MAX_KEPT + 8)]
    begun = [made.begin(grammar) for grammar in grammars]
    assert [made.begin(grammar) for grammar in grammars] == begun
    goes_on.set()
    assert all(made.compile(grammar) for grammar in grammars)
    assert len(made._kept) <= MAX_KEPT + 8


def test_a_trial_that_never_began_is_no_refusal(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is killed after it was handed a grammar: once that is tried again, then it is said."""
    trials, deaths = compiler._trials, iter([True, False, True, True])
    assert trials is not None
    hand_over = trials._hand_over

    def deadly(connection: socket.socket) -> Worker:
        if next(deaths):
            trials.start()
            os.kill(trial_pid(compiler), signal.SIGSTOP)
            worker = hand_over(connection)
            os.kill(trial_pid(compiler), signal.SIGKILL)
            return worker
        return hand_over(connection)

    monkeypatch.setattr(trials, "_hand_over", deadly)
    compiler.compile(Grammar.regex("a"))
    with pytest.raises(RequestError, match=r"could not be tried: .*; send the request again"):
        compiler.compile(Grammar.regex("b"))
    monkeypatch.undo()
    compiler.compile(Grammar.regex("b"))


def parents_of(pid: int) -> list[int]:
    """Of those that are left when it ends: itself, and the child that waits for its own."""
    found = [pid]
    while below := children(found[-1]):
        found += map(int, below)
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGALRM, signal.SIGPROF, signal.SIGABRT])
def test_how_a_trial_was_ended_is_told(compiler: Compiler, how: signal.Signals) -> None:
    """One that waits for its grammar, so that no limit is near."""
    trials = compiler._trials
    assert trials is not None
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            trials._hand_over(theirs)
        until(lambda: len(parents_of(trial_pid(compiler))) == 3)
        os.kill(parents_of(trial_pid(compiler))[-1], how)
        said = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    assert msgspec.msgpack.decode(said, type=trial.Verdict) == trial.Verdict(ended_by=how)


def test_what_a_trial_has_begun_of_is_told_though_the_compiler_is_closed(compiler: Compiler) -> None:
    trials = compiler._trials
    assert trials is not None
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            worker = trials._hand_over(theirs)
        until(lambda: len(parents_of(worker.pid)) == 3)
        compiler.close()
        assert not worker.alive
        ours.sendall(msgspec.msgpack.encode(Grammar.regex("a")))
        ours.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    assert msgspec.msgpack.decode(said, type=trial.Verdict).source


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        (signal.SIGKILL, TrialFailed, r"ended by SIGKILL, as where memory is short; send the request again"),
        (signal.SIGTERM, TrialFailed, r"ended by SIGTERM.*; send the request again"),
        (signal.SIGRTMIN + 1, TrialFailed, r"ended by signal \d+.*; send the request again"),
        (signal.SIGALRM, TrialFailed, r"so busy that it had no 2 s of a core within 30 s; send the request again"),
        (signal.SIGPROF, RequestError, r"takes more than 2 s of a core; make it simpler"),
        (signal.SIGABRT, RequestError, r"takes more than 128 MiB; make it simpler"),
        (signal.SIGSEGV, RequestError, r"takes what ends the compiler \(SIGSEGV\); make it simpler"),
    ],
)
def test_an_end_from_outside_is_not_the_grammars_fault(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, how: int, kind: type[RequestError], says: str
) -> None:
    told = msgspec.msgpack.encode(trial.Verdict(ended_by=how))
    with monkeypatch.context() as patch:
        patch.setattr(compiler._trials, "_ask", lambda grammar: told)
        with pytest.raises(RequestError, match=says) as caught:
            compiler.compile(Grammar.regex("a"))
    assert caught.type is kind
    if kind is TrialFailed:
        compiler.compile(Grammar.regex("a"))


def test_where_no_process_can_be_started_the_grammar_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def forkless(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        code = f"import os, sys; from {trial.__name__} import main; os.fork = lambda: os.open('', 0); main({words[-2]})"
        return start([sys.executable, "-c", code], **options)

    made = Compiler(TOKENIZER, VOCAB)
    made.guard()
    with monkeypatch.context() as patch:
        patch.setattr("outpace.distributed.workers.subprocess.Popen", forkless)
        with pytest.raises(RequestError, match=r"could not be tried: .*; send the request again"):
            made.compile(Grammar.regex("b"))
    made.compile(Grammar.regex("b"))
    made.close()


def test_what_nobody_waits_for_is_not_compiled() -> None:
    made = Compiler(TOKENIZER, VOCAB)
    made._threads, goes_on = ThreadPoolExecutor(1), Event()
    made._threads.submit(goes_on.wait)
    left = made.begin(Grammar.regex("a"))
    made.give_up(Grammar.regex("a"))
    assert left.cancelled() and not made._kept
    made.give_up(Grammar.regex("a"))
    goes_on.set()
    assert made.compile(Grammar.regex("a"))
