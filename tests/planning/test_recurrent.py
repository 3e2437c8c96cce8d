"""Plans of recurrent layers, against what real ones take on the host."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.planning.compared import compared, mean_square, plain_step

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], is_batch_first: bool, is_both_ways: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.layer = kind(32, 48, batch_first=is_batch_first, bidirectional=is_both_ways)
        self.head = nn.Linear(96 if is_both_ways else 48, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(tokens))[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tokens", "is_batch_first", "is_both_ways"),
    [(nn.LSTM, 7, True, True), (nn.LSTM, 300, False, True), (nn.GRU, 96, True, False), (nn.RNN, 130, False, False)],
)
def test_a_plan_has_what_a_layer_keeps(
    kind: type[nn.RNNBase], tokens: int, is_batch_first: bool, is_both_ways: bool
) -> None:
    model = Tagger(kind, is_batch_first, is_both_ways)
    batch = torch.zeros((8, tokens) if is_batch_first else (tokens, 8), dtype=torch.long)
    is_planned_within(0.02, model, model, batch)


def is_planned_within(
    share: float, model: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor
) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    step = plain_step(forward, optimizer, mean_square)
    assert compared(step, model, optimizer, batch, steps=2, rel=share).notes == ()


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_rows_of_many_lengths_are_planned(kind: type[nn.RNNBase]) -> None:
    model, lengths = nn.ModuleList([nn.Linear(8, 16), kind(16, 24, bidirectional=True)]), torch.tensor([20, 13, 13, 3])

    def forward(batch: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():  # a step that evaluates first
            with torch.inference_mode():
                forward(batch)
        packed = nn.utils.rnn.pack_padded_sequence(model[0](batch), lengths)
        return nn.utils.rnn.pad_packed_sequence(model[1](packed)[0])[0]

    is_planned_within(0.001, model, forward, torch.zeros(20, 4, 8))
