"""What a lesson holds, against the target itself and against counting by hand."""

from __future__ import annotations

import numpy as np
import torch

from engine.tiny import VOCAB, tiny_target
from outpace.training.dataset import Batch
from outpace.training.teacher import Teacher, causal_attend, runs

IDS = torch.tensor([3, 5, 8, 20, 33, 60])


def batch() -> Batch:
    rng = np.random.default_rng(1)
    assistant = rng.random((3, 20)) < 0.8
    return Batch(tokens_BT=rng.integers(0, VOCAB, (3, 20)), assistant_BT=assistant, num_tokens=60)


def test_runs_count_assistant_tokens_ahead() -> None:
    found = batch()
    counts = runs(found)
    for row in range(3):
        for t in range(20):
            expected = 0
            while t + expected + 1 < 20 and found.assistant_BT[row, t + expected + 1]:
                expected += 1
            assert counts[row, t] == expected


def test_labels_are_the_targets_probabilities_of_the_token_that_is_drafted() -> None:
    target, found = tiny_target(), batch()
    teacher = Teacher(target.model, taps=(0, 1, 2), target_ids_V=IDS, num_steps=4, chunk_rows=5)
    lesson = teacher.teach(found)
    tokens = torch.from_numpy(found.tokens_BT)
    positions = torch.arange(20).expand_as(tokens)
    hidden, features = target.model(tokens, positions, causal_attend(target.config.windows), (0, 1, 2))
    probs = target.model.logits(hidden).double().softmax(-1)
    torch.testing.assert_close(lesson.features_BTF, features)
    for step in range(4):
        places = []
        for place, label in zip(lesson.anchors[step].tolist(), lesson.labels[step].tolist(), strict=True):
            row, t = divmod(place, 20)
            judged = probs[row, t + 1 + step]
            torch.testing.assert_close(lesson.probs_NV[label].double(), judged[IDS], rtol=1e-4, atol=1e-7)
            best = int(judged.argmax())
            assert int(lesson.best_N[label]) == (IDS.tolist().index(best) if best in IDS else -1)
            places.append((row, t))
        assert places == [
            (row, t)
            for row in range(3)
            for t in range(18 - step)
            if found.assistant_BT[row, t + 1 : t + 3 + step].all()
        ]


def test_windows_of_the_target_are_kept() -> None:
    windowed = tiny_target(windows=(3, None, 3))
    tokens = torch.randint(VOCAB, (1, 12))
    positions = torch.arange(12).expand_as(tokens)
    hidden, _ = windowed.model(tokens, positions, causal_attend((3, None, 3)))
    whole, _ = windowed.model(tokens, positions, causal_attend((None, None, None)))
    torch.testing.assert_close(hidden[:, :3], whole[:, :3])
    assert not torch.allclose(hidden[:, 5:], whole[:, 5:])
