"""Plans of recurrent layers, against what real ones take on the host."""

import pytest
import torch
from torch import nn

import forgather_mem
from tests.planning.counted import Counted

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], is_batch_first: bool, is_both_ways: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.layer = kind(32, 48, batch_first=is_batch_first, bidirectional=is_both_ways)
        self.head = nn.Linear(96 if is_both_ways else 48, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layer(self.embedding(tokens))[0])
        return scores


@pytest.mark.parametrize(
    ("kind", "tokens", "is_batch_first", "is_both_ways"),
    [(nn.LSTM, 7, True, True), (nn.LSTM, 300, False, True), (nn.GRU, 96, True, False), (nn.RNN, 130, False, False)],
)
def test_a_plan_has_what_a_layer_keeps(
    kind: type[nn.RNNBase], tokens: int, is_batch_first: bool, is_both_ways: bool
) -> None:
    model = Tagger(kind, is_batch_first, is_both_ways)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.zeros((8, tokens) if is_batch_first else (tokens, 8), dtype=torch.long)

    def step(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    plan = forgather_mem.plan(step, model, optimizer, batch)
    with Counted() as real:
        for _ in range(2):
            step(batch)
    assert plan.notes == ()
    assert plan.peak_bytes == pytest.approx(real.peak_bytes, rel=0.02)


def test_rows_of_many_lengths_are_planned_token_by_token() -> None:
    model = nn.GRU(8, 8)
    rows = nn.utils.rnn.pack_sequence([torch.zeros(100, 8), torch.zeros(3, 8)])
    assert forgather_mem.plan(lambda batch: model(batch)[0].data.sum().backward(), model, None, rows).peak_bytes
