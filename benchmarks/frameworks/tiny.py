"""What the scripts of this folder share: a tiny network or language model, and what it is trained with."""

import torch
from torch import nn

STEPS, ROWS = 240, 32


def net(width: int = 768) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def rows(number: int = STEPS * ROWS) -> torch.utils.data.TensorDataset:
    torch.manual_seed(1)
    return torch.utils.data.TensorDataset(torch.randn(number, 64), torch.randn(number, 1))


def loader(number: int = STEPS * ROWS) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(rows(number), batch_size=ROWS)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer | None = None):
    """The losses of the steps of a plain loop."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for data, target in loader():
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=128, n_layer=2, n_head=2))


def tokens(number: int = STEPS * 4) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    return [{"input_ids": row, "labels": row} for row in torch.randint(4, 128, (number, 32))]


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", "[CLS]", *(f"w{number}" for number in range(124))]
    built = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=built, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def bert() -> str:
    """The folder of a tiny model with its tokenizer."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(
        BertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
    ).save_pretrained("bert")
    tokenizer().save_pretrained("bert")
    return "bert"


def texts(number: int, length: int = 24) -> list[str]:
    return [" ".join(f"w{(7 * row + 3 * at) % 124}" for at in range(length)) for row in range(number)]
